"""The bias meter against closed forms, plain loops, and the public fixed points."""

import re
from typing import NamedTuple

import numpy as np
import pytest

import clipsilon as cs
import reference
from clipsilon.analysis.bias import fraction_clipped, proposed_clips
from clipsilon.analysis.fixed_points import clipped_path
from clipsilon.engine.means import gradient_norms
from clipsilon.report.plots import bias_figure


def quadratic(p=0.1, a=10.0, region=None, records=1000):
    """Return paper 1's quadratic problem, with a fraction p of ones, as a function of β."""
    z = np.zeros(records)
    z[: round(p * records)] = 1.0
    loss = cs.losses.Quadratic(a)
    return lambda beta: cs.Problem(z, loss=loss, response=cs.responses.LocationShift(beta), region=region)


def gaming(beta):
    return reference.problem(cs.losses.Logistic(0.05, 2.0), cs.responses.BestResponse(beta))


def lengths(problem, theta):
    """Return the norms of the records' gradients by the reference implementation."""
    records = zip(problem.features, problem.labels, strict=True)
    moved = [(reference.respond(problem.response, theta, x, y, None), y) for x, y in records]
    return np.array([np.linalg.norm(reference.gradient(problem.loss, theta, *record)) for record in moved])


def test_the_quadratic_table_is_the_closed_form():
    """Bias = (p/(1−aβ))²(ab − c/(1−p))² where ab ≥ c/(1−p), and 0 otherwise, when no gradient is clipped."""
    clips, betas, p, a = [0.5, 1.0, 3.0, 8.9, 9.1, 20.0], [0.0, 0.01, 0.05, 0.09], 0.1, 10.0
    rows = cs.bias_table(quadratic(p, a), clips, betas)
    assert [(row.beta, row.clip) for row in rows] == [(beta, clip) for beta in betas for clip in clips]
    for row in rows:
        exact = (p / (1 - a * row.beta)) ** 2 * max(0.0, a - row.clip / (1 - p)) ** 2
        assert row.bias == pytest.approx(exact, abs=1e-8)
        assert row.fraction_clipped == (p if row.clip < a * (1 - p) else 0.0)
        assert row.stable_norm == pytest.approx(p * a / (1 - a * row.beta), abs=1e-8)
        assert row.contraction == pytest.approx(a * row.beta)
        assert row.converged
        assert row.steady
        assert row.remark == ""


def test_the_reaction_amplifies_the_bias_as_theorem_3_5_says():
    rows = cs.bias_table(quadratic(), [1.0], [0.0, 0.02, 0.05, 0.08, 0.095])
    scaled = [row.bias * (1 - 10.0 * row.beta) ** 2 for row in rows]  # μ = 1, L = 10
    np.testing.assert_allclose(scaled, scaled[0], rtol=0.01)
    assert rows[-1].bias > 300 * rows[0].bias


def test_the_table_agrees_with_the_public_points():
    betas, clips = [0.0, 0.4], [0.2, 1.0, 5.0]
    for row in cs.bias_table(gaming, clips, betas):
        problem = gaming(row.beta)
        assert row.bias == pytest.approx(cs.clipping_bias(problem, row.clip), abs=1e-10)
        assert row.stable_norm == pytest.approx(np.linalg.norm(cs.stable_point(problem).theta), abs=1e-10)
        at = cs.clipped_point(problem, row.clip).theta
        assert row.fraction_clipped == np.mean(lengths(problem, at) > row.clip)


def test_the_bias_vanishes_when_no_gradient_is_clipped():
    problem = gaming(0.3)
    theta = cs.stable_point(problem).theta
    longest = gradient_norms(problem, theta, theta, 1).max()
    above, below = cs.bias_table(gaming, [1.001 * longest, 0.9 * longest], [0.3])
    assert (above.bias, above.fraction_clipped) == (0.0, 0.0)
    assert below.bias > 0
    assert below.fraction_clipped > 0


def test_gradient_norms_and_the_fraction_clipped_against_a_plain_loop():
    problem, theta = gaming(0.4), np.array([0.5, -0.2, 0.3, 1.0])
    norms = gradient_norms(problem, theta, theta, 7)
    assert norms.shape == (problem.records, 1)  # the response is not random, so there is a single draw
    np.testing.assert_allclose(norms[:, 0], lengths(problem, theta), rtol=1e-12)
    median = float(np.median(norms))
    assert fraction_clipped(problem, theta, median) == 0.5  # 60 records with distinct norms
    assert fraction_clipped(problem, theta, norms.max()) == 0.0  # a gradient of exactly this norm is not clipped


class Jostled(NamedTuple):
    """A response that adds a random shift."""

    scale: float
    random = True


@cs.implements(cs.responses.respond, Jostled)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] = features[j] + response.scale * rng.standard_normal()
    return label


def test_a_random_reaction_is_averaged_over_its_draws():
    problem = cs.Problem(np.zeros(3), loss=cs.losses.Quadratic(1.0), response=Jostled(2.0))
    draws = 2.0 * np.random.Generator(np.random.SFC64(0)).standard_normal((3, 50))
    np.testing.assert_allclose(gradient_norms(problem, np.ones(1), np.ones(1), 50), np.abs(1 + draws), rtol=1e-12)
    assert fraction_clipped(problem, 1.0, 2.0, draws=50) == np.mean(np.abs(1 + draws) > 2)


@pytest.mark.parametrize(
    ("problem_at", "beta", "clip", "remark", "number"),
    [
        (quadratic(), 0.1, 1.0, "no stable point was found; β ≥ μ/L by the bounds", False),
        (quadratic(), 0.15, 100.0, "the stable point repels, so algorithms move away from it; the clipped", True),
        (quadratic(p=0.5), 0.05, 1.0, "the clipped point is not isolated, and its neighbours are as good", True),
        (
            quadratic(region=cs.regions.Box(-10, 10)), 0.15, 1.0,
            "the stable point is held at the boundary of the region; the clipped point is held at the boundary", True,
        ),
        (quadratic(region=cs.regions.Box(-0.5, 3)), 0.05, 1.0, "the stable point is held at the boundary", True),
    ],
)  # fmt: skip
def test_a_doubtful_point_is_explained_in_its_row(problem_at, beta, clip, remark, number):
    """There is neither a warning (which would fail the test) nor an error, and every doubtful number has a remark."""
    (row,) = cs.bias_table(problem_at, [clip], [beta])
    assert row.remark.startswith(remark)
    assert ("β ≥ μ/L" in row.remark) == (row.contraction >= 1)
    assert not row.steady
    assert row.converged == number
    assert np.isfinite([row.bias, row.fraction_clipped, row.stable_norm]).all() == number


class Leaping(NamedTuple):
    """A response in which all records jump when the model falls below a level."""

    level: float


@cs.implements(cs.responses.respond, Leaping)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] = features[j] + (100.0 if deployed[j] < response.level else 0.0)
    return label


def test_the_bias_is_nan_if_the_clipped_point_is_not_found():
    """The mean of the records is 10, and most are 0. Below 5 all records jump up and pull the model back."""
    problem = cs.Problem([0.0] * 9 + [100.0], loss=cs.losses.Quadratic(-1.0), response=Leaping(5.0))
    found, lost = cs.bias_table(lambda beta: problem, [1e3, 0.1], [0.0])
    assert found.steady
    assert found.bias == 0.0
    assert lost.remark.startswith("no clipped point was found")
    assert not lost.converged
    assert np.isnan([lost.bias, lost.fraction_clipped]).all()
    assert lost.stable_norm == pytest.approx(10.0)


def test_a_steady_bias_has_a_remark_where_theory_guarantees_nothing():
    (row,) = cs.bias_table(gaming, [0.5], [5.0])
    assert row.contraction > 1
    assert row.steady
    assert row.remark == "β ≥ μ/L by the bounds, so the points need not be the only ones"


def test_the_path_follows_the_points_from_the_largest_clip_down():
    stable, points = clipped_path(gaming(0.4), [0.3, 3.0, 1.0])
    assert list(points) == [3.0, 1.0, 0.3]
    np.testing.assert_allclose(stable.theta, cs.stable_point(gaming(0.4)).theta, atol=1e-9)
    for clip, point in points.items():
        np.testing.assert_allclose(point.theta, cs.clipped_point(gaming(0.4), clip).theta, atol=1e-9)


def test_proposed_clips_cover_the_gradients():
    problem = gaming(0.0)
    theta = cs.stable_point(problem).theta
    norms = gradient_norms(problem, theta, theta, 1)
    clips = proposed_clips(problem)
    assert clips == sorted(set(clips))
    assert len(clips) == 8
    assert all(float(f"{clip:.2g}") == clip for clip in clips)
    assert clips[-1] >= norms.max() > clips[-2]
    assert fraction_clipped(problem, theta, clips[0]) >= 0.9
    assert len(proposed_clips(problem, count=3)) == 3


def test_clips_cannot_be_proposed_where_there_are_no_gradients():
    with pytest.raises(ValueError, match="^clips must be given for a problem whose gradients all vanish"):
        proposed_clips(cs.Problem([0.0, 0.0], loss=cs.losses.Quadratic()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [0.1]), "clips must hold one or more numbers, got []."),
        (([1.0], []), "betas must hold one or more numbers, got []."),
        (([1.0, 0.0], [0.1]), "clips must be a number above 0, got 0.0."),
        (([1.0, np.nan], [0.1]), "clips must be a finite number, got nan."),
        ((["a"], [0.1]), "clips must hold numbers only, got list."),
        (([1.0], [np.inf]), "betas must be a finite number, got inf."),
        (([1.0], [0.1, -0.1]), "beta must be a number of at least 0, got -0.1."),  # the response's own check
        (([1.0], [0.1], 0), "draws must be a whole number of at least 1, got 0."),
    ],
)
def test_wrong_input(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cs.bias_table(gaming, *arguments)


def test_a_bare_number_is_a_list_of_one():
    assert cs.bias_table(quadratic(), 1.0, 0.05) == cs.bias_table(quadratic(), [1.0], [0.05])


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def test_the_figure_shows_the_rows():
    rows = cs.bias_table(quadratic(), [1.0, 3.0, 20.0], [0.0, 0.01, 0.05])
    left, right = bias_figure(rows, "Quadratic").axes
    assert set(lines(left)) == {"β = 0", "β = 0.01", "β = 0.05", "no bias"}
    assert set(lines(right)) == {"c = 1", "c = 3"}
    x, y = lines(left)["β = 0.05"].get_data()
    np.testing.assert_array_equal(x, [1, 3, 20])
    np.testing.assert_array_equal(y, [rows[6].bias, rows[7].bias, np.nan])  # zeros are marked below the axis
    x, y = lines(right)["c = 3"].get_data()
    np.testing.assert_array_equal(x, [0, 0.01, 0.05])
    np.testing.assert_array_equal(y, [rows[k].bias for k in (1, 4, 7)])


@pytest.mark.parametrize(
    ("clips", "betas", "labels"),
    [
        ([1.0, 2.0], [0.05], {"β = 0.05"}),  # one β: one panel
        ([100.0, 200.0], [0.0, 0.05], {"no bias"}),
        ([1.0], [0.1], set()),  # nothing was found
        ([100.0], [0.15], set()),  # a bias of zero at points that repel
        (np.geomspace(0.1, 8, 20), [0.0, 0.01, 0.5], {"β = 0", "β = 0.01", "β = 0.5", "see remark"}),
    ],
)
def test_figures_of_odd_tables(clips, betas, labels, tmp_path):
    figure = bias_figure(cs.bias_table(quadratic(), clips, betas), "Odd")
    figure.savefig(tmp_path / "odd.png")
    assert len(figure.axes) == min(2, len(betas))
    assert set(lines(figure.axes[0])) == labels
