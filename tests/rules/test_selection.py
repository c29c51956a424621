"""Noisy selection (paper 5, Theorem 4.1): what it selects, and that the selection is as private as stated."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binomtest, norm

import clipsilon as cs
import reference
from clipsilon.engine.means import mean_gradient
from clipsilon.privacy.auditing.canaries import Pair
from clipsilon.rules.clipping import Norm
from clipsilon.rules.noise import Gaussian
from clipsilon.rules.outputs import Selected, consider, summarise
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Full

STEP = cs.schedules.Constant(0.5)
DELTA = 1e-5
SURE = 1 - 1e-7


def beyond(z, scale):
    """Return Pr[Z > z] for Laplace noise Z."""
    return 0.5 * math.exp(-z / scale) if z > 0 else 1 - 0.5 * math.exp(z / scale)


def chances(lengths, scale):
    """Return the probability that each candidate is selected, by integration over the noise on its length."""

    def density(z, i):
        others = (beyond(z - other, scale) for j, other in enumerate(lengths) if j != i)
        return math.exp(-abs(z - lengths[i]) / scale) / (2 * scale) * math.prod(others)

    ends = min(lengths) - 60 * scale, max(lengths) + 60 * scale
    kinks = sorted(set(lengths))
    places = range(len(lengths))
    return np.array([quad(density, *ends, args=(i,), points=kinks, epsabs=0, limit=500)[0] for i in places])


def first_wins(difference, scale):
    """Return Pr[Z_0 − Z_1 < difference] for two Laplace variables, in closed form."""
    x = np.abs(difference) / scale
    tail = np.exp(-x) * (2 + x) / 4
    return np.where(difference < 0, tail, 1 - tail)


def quadratic(records, **more):
    return cs.Problem(records, loss=cs.losses.Quadratic(1.0), **more)


@pytest.mark.parametrize("noise_std", [0.0, 0.3])
def test_the_shortest_gradient_is_selected_where_the_choice_is_hardly_noisy(noise_std):
    """Without noise on the updates the last candidate is selected; with noise, an earlier one."""
    problem = reference.problem(cs.losses.Savage())
    rule = cs.NoisySelection(cs.schedules.Constant(1.0), 100.0, noise_std, selection_epsilon=1e12)
    trace = cs.run(problem, rule, 60, start=0.7, seed=0, record=range(61))
    lengths = [np.linalg.norm(mean_gradient(problem, theta, theta, 1)) for theta in trace.theta[0, :60]]
    shortest = np.argmin(lengths)
    assert (shortest == 59) == (noise_std == 0.0)
    np.testing.assert_array_equal(trace.output[0], trace.theta[0, shortest])


def test_the_last_iterate_is_no_candidate_and_the_first_one_is():
    """The candidates are θ_0, …, θ_{T−1}: after one step, θ_0 is the only one, even if θ_1 is better."""
    rule = cs.NoisySelection(STEP, 10.0, 0.0, selection_epsilon=1e12)
    trace = cs.run(quadratic([0.0, 0.0]), rule, 1, start=1.0, seed=0)
    assert trace.theta[0, -1, 0] == 0.5
    assert trace.output[0, 0] == 1.0
    assert cs.run(quadratic([0.0, 0.0]), rule, 2, start=1.0, seed=0).output[0, 0] == 0.5


def test_a_trace_has_the_model_and_no_average():
    trace = cs.run(reference.problem(cs.losses.Savage()), cs.NoisySelection(STEP, 1.0, 0.1, 1.0), 30, seed=0)
    assert trace.output.shape == (1, 4)
    assert trace.average is None
    with pytest.raises(ValueError, match="of must be 'theta' for NoisySelection, which does not average"):
        trace.gap(0.0, of="average")


@pytest.mark.verify
def test_the_engine_selects_with_the_stated_chances():
    """Without noise on the updates the lengths are known. 20,000 runs; three tests with 10⁻⁷ false alarms each."""
    problem = quadratic([-1.0, 0.5, 2.0, 0.0])
    rule = cs.NoisySelection(STEP, 3.0, 0.0, selection_epsilon=4.0)
    trace = cs.run(problem, rule, 3, start=0.6, replicates=20_000, seed=0, record=range(4))
    candidates = trace.theta[0, :3, 0]
    lengths = np.abs(candidates + 0.375)
    expected = chances(lengths, 4 * 3.0 / (4 * 4.0))
    assert expected.sum() == pytest.approx(1)
    for candidate, chance in zip(candidates, expected, strict=True):
        assert binomtest(int((trace.output[:, 0] == candidate).sum()), 20_000, chance).pvalue > 1e-7


def test_the_scale_covers_the_rounding_of_norms_however_large_the_data():
    """The computed norms of two data sets may differ by a further L·(d + 16)·2⁻⁵³."""
    for records, dimension in ((10, 3), (10**7, 10), (10**8, 10**5)):
        exact, found = 4.0 / records, Selected(1.0).on(1.0, records, dimension).scale
        rounding = (dimension + 16) * 2.0**-53
        assert found >= exact + 2.0 * rounding


@pytest.mark.parametrize("bases", [(0.0, 0.0), (0.0, 30.0), (0.0, 1.0, 2.0), (4.0, 0.0, 25.0)])
def test_the_choice_is_private(bases):
    """If one record changes the lengths by at most 2L/n, or L/n, the exact privacy loss is at most ε, or ε/2.

    The bounds are nearly attained. With half the scale the loss would be twice as large, so the factor of 4 is needed.
    """
    bound, records, epsilon = 2.0, 5, 1.5
    scale = Selected(epsilon).on(bound, records).scale
    worst = {}
    for change, factor in itertools.product((1.0, 2.0), (0.5, 1.0)):
        sensitivity = change * bound / records
        base = np.array(bases) * sensitivity
        moves = itertools.product((-1.0, 0.0, 1.0), repeat=len(bases))
        before = chances(base, factor * scale)
        losses = [np.log(chances(base + sensitivity * np.array(move), factor * scale) / before) for move in moves]
        worst[change, factor] = np.abs(losses).max()
    assert worst[2.0, 1.0] <= epsilon * (1 + 1e-9)
    assert worst[1.0, 1.0] <= epsilon / 2 * (1 + 1e-9)
    if max(bases) >= 25:
        assert worst[2.0, 1.0] > 0.9 * epsilon
        assert worst[2.0, 0.5] > 1.8 * epsilon


def mean_clipped(records, theta, bound):
    """Return the mean clipped gradient of ½(θ + z)² at an array of θ; None is a record that is zeroed out."""
    return sum(np.clip(theta + z, -bound, bound) for z in records if z is not None) / len(records)


def joint_delta(pair, bound, noise_std, selection, epsilon):
    """Return δ(ε) of two steps of size ½ from 0 and the selection from θ_0 and θ_1, by integration over both updates."""
    grid = np.linspace(-9, 9, 1201) * noise_std
    x0, x1 = grid[:, np.newaxis], grid[np.newaxis, :]
    laws = []
    for records in pair:
        first, second = mean_clipped(records, 0.0, bound), mean_clipped(records, -0.5 * x0, bound)
        density = norm.pdf(x0, first, noise_std) * norm.pdf(x1, second, noise_std)
        stays = first_wins(np.abs(second) - np.abs(first), 4 * bound / (len(records) * selection))
        laws.append(np.stack((density * stays, density * (1 - stays))))
    return float(np.maximum(laws[0] - np.exp(epsilon) * laws[1], 0).sum() * (grid[1] - grid[0]) ** 2)


@pytest.mark.parametrize(("adjacency", "other"), [("replace-one", -1.0), ("zero-out", None)])
def test_the_whole_release_is_private(adjacency, other):
    """By brute force, δ of two noisy updates and the selection lies between the updates' and the certified one."""
    noise_std, selection = 4.0, 4.0
    rules = cs.NoisySelection(STEP, 1.0, noise_std, selection), cs.DPGD(STEP, 1.0, noise_std)
    whole, descent = (cs.account(rule, 2, 2, DELTA, adjacency) for rule in rules)
    assert whole.certified == pytest.approx(descent.certified + (4.0 if other else 2.0))
    for epsilon in (0.1, 0.5, 1.0):
        pairs = itertools.permutations([(-0.3, 1.0), (-0.3, other)])
        found = max(joint_delta(pair, 1.0, noise_std, selection, epsilon) for pair in pairs)
        assert descent.delta_at(epsilon) < found <= whole.delta_at(epsilon)


def test_difference_of_noises():
    """The closed form that the brute force uses equals the integral."""
    for difference in (-2.0, 0.0, 0.7):
        assert first_wins(difference, 0.4) == pytest.approx(chances(np.array([0.0, difference]), 0.4)[0])


@pytest.mark.verify
def test_audits():
    """The library's attacks use the updates; a user-defined attack on the selection demonstrates a larger ε.

    Each bound exceeds the truth with probability 10⁻⁷.
    """
    rule, descent = cs.NoisySelection(STEP, 1.0, 50.0, selection_epsilon=3.0), cs.DPGD(STEP, 1.0, 50.0)
    updates = cs.account(descent, 2, 2, 1e-3).certified
    assert cs.audit(rule, 2, 2, 1e-3, runs=1000, confidence=SURE, seed=0).lower_bound <= updates
    region = cs.regions.Box(-3.0, 3.0)  # so that θ_1 is far from 0 on either side
    pair = Pair(quadratic([-0.9, -9.0], region=region), quadratic([-0.9, 9.0], region=region))
    settings = {"runs": 6000, "confidence": SURE, "seed": 0}
    own = cs.audit(rule, 2, 2, 1e-3, **settings, pair=pair, statistic=lambda trace: trace.output[:, 0] == 0)
    assert 5 * updates < own.lower_bound <= own.statement.certified


def test_statement():
    rule = cs.NoisySelection(STEP, lipschitz=2.0, noise_std=0.1, selection_epsilon=0.5)
    descent = cs.account(cs.DPGD(STEP, 2.0, 0.1), 1000, 50, DELTA)
    statement = cs.account(rule, 1000, 50, DELTA)
    assert statement.certified == descent.certified + 0.5
    assert statement.claimed == descent.claimed + 0.5
    assert statement.delta_at(1.5) == descent.delta_at(1.0)
    text = str(statement)
    assert "adds ε = 0.5 to it" in text
    assert "by at most 2L/n at iterates that are released anyway" in text
    assert "paper 5, Theorem 4.1" in text
    assert "What would have been selected earlier in the run, and any noisy norm, is not covered." in text
    zeroed = str(cs.account(rule, 1000, 50, DELTA, "zero-out"))
    assert "adds ε = 0.25 to it" in zeroed
    assert "by at most L/n" in zeroed
    assert cs.account(cs.NoisySelection(STEP, 2.0, 0.0, 0.5), 1000, 50, DELTA).certified == np.inf
    with pytest.raises(ValueError, match="adjacency must be 'replace-one' or 'zero-out' for Full sampling"):
        cs.account(rule, 1000, 50, DELTA, "add-remove")


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_calibration(adjacency):
    """The descent receives the budget that the selection leaves."""
    for target in (0.51, 1.0, 10.0):
        rule = cs.calibrate(cs.NoisySelection(STEP, 2.0, 1.0, 0.5), target, DELTA, 200, 20, adjacency=adjacency)
        assert rule.output == Selected(0.5)
        assert 0.98 * target <= cs.account(rule, 200, 20, DELTA, adjacency).certified <= target
    assert cs.longest_run(rule, 10.0, DELTA, 200, adjacency) >= 20
    assert cs.longest_run(rule, 0.2, DELTA, 200, adjacency) == 0


def test_calibration_as_in_the_paper():
    """Noise for ε and a selection for ε give (2ε, δ), with the noise of Theorem 2.6."""
    rule = cs.calibrate(cs.NoisySelection(STEP, 2.0, 1.0, 1.0), 2.0, DELTA, 200, 20, how="paper")
    assert rule.noise.std == pytest.approx(np.sqrt(2 * 20 * np.log(1 / DELTA)) * 2.0 / 200)
    assert cs.account(rule, 200, 20, DELTA).claimed == pytest.approx(2.0)


class Peeking(NamedTuple):
    """An output that releases the last update before noise instead of the model."""


cs.implements(summarise, Peeking)(lambda output, t, theta, summary: None)


@cs.implements(consider, Peeking)
def _(output, theta, update, summary, rng):
    for j in range(theta.size):
        summary[j] = update[j]


class Halfway(NamedTuple):
    """An output that releases half of the last iterate."""


@cs.implements(summarise, Halfway)
def _(output, t, theta, summary):
    for j in range(theta.size):
        summary[j] = 0.5 * theta[j]


def test_an_output_of_ones_own_is_certified_only_if_it_sees_iterates_alone():
    peeking, halfway = (
        Rule("mine", STEP, Norm(1.0), Full(), Gaussian(1.0), output=output) for output in (Peeking(), Halfway())
    )
    statement = cs.account(peeking, 50, 20, DELTA)
    assert statement.certified == np.inf
    assert statement.reasons[0] == "Nothing can be certified: the output looks at updates before noise."
    assert cs.account(halfway, 50, 20, DELTA).certified == cs.account(cs.DPGD(STEP, 1.0, 1.0), 50, 20, DELTA).certified
    with pytest.raises(ValueError, match="rule must be one that can be certified: .* looks at updates before noise"):
        cs.calibrate(peeking, 1.0, DELTA, 50, 20)
    problem = quadratic([1.0, 3.0])
    assert cs.run(problem, Rule("mine", STEP, Norm(9.0), Full(), output=Peeking()), 1, seed=0).output[0, 0] == 2.0
    trace = cs.run(problem, Rule("mine", STEP, Norm(9.0), Full(), output=Halfway()), 1, seed=0)
    assert (trace.theta[0, -1, 0], trace.output[0, 0]) == (-1.0, -0.5)
