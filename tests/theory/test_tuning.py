"""`tune`: certified, near the best of a grid, and with reasons."""

from typing import NamedTuple

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.cli.demo_report import credit_case, quadratic_case
from clipsilon.theory.performative import sharp_clipped_sgd_bound
from clipsilon.theory.tuning import simulation
from clipsilon.theory.tuning.task import PRESETS

STEPS = [cs.schedules.Constant(gamma) for gamma in (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 1e-2)] + [
    cs.schedules.InverseTime(a0, a1) for a0 in (0.5, 1, 2, 5, 10, 30) for a1 in (10, 1000, 100_000)
]


def small_quadratic(beta=0.05, records=10_000):
    data = cs.datasets.bernoulli(records, p=0.1)
    return cs.Problem(
        data,
        loss=cs.losses.Quadratic(a=10.0),
        response=cs.responses.LocationShift(beta=beta),
        region=cs.regions.Box(-10, 10),
    )


def gaps(problem, rule, steps, start, replicates, seed):
    target = cs.stable_point(problem).theta
    trace = cs.run(problem, rule, steps=steps, start=start, replicates=replicates, seed=seed, progress=False)
    return np.sum((trace.output - target) ** 2, axis=1)


def best_of_grid(problem, noise, clips, steps, start, replicates):
    """Return the rule with the smallest mean gap over a grid of clips and steps, at the noise that the budget needs."""
    scores = {}
    for clip in clips:
        for step in STEPS:
            rule = cs.PCSGD(step, clip, noise * clip)
            try:
                scores[rule] = gaps(problem, rule, steps, start, replicates, seed=1).mean()
            except cs.DivergenceError:
                continue
    return min(scores, key=scores.__getitem__)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_proposals_are_certified_and_explained(adjacency):
    problem, steps = small_quadratic(records=2000), 2000
    proposal = cs.tune(problem, epsilon=2.0, delta=1e-5, steps=steps, start=5.0, adjacency=adjacency)
    again = cs.account(proposal.rule, problem.records, steps, 1e-5, adjacency)
    assert 0.98 * 2.0 <= again.certified <= 2.0
    assert again.certified == proposal.statement.certified
    assert {option.rule.name for option in proposal.options} == set(PRESETS)
    expected = [option.forecast.gap for option in proposal.options]
    assert expected == sorted(expected)
    for option in proposal.options:  # calibrated at clip one, and scaled
        assert cs.account(option.rule, problem.records, steps, 1e-5, adjacency).certified == pytest.approx(
            2.0, rel=0.02
        )
    said = str(proposal)
    assert said.startswith(f"{proposal.rule.name}, 2000 steps on 2000 records\n")
    assert "not covered by the statement" in said
    assert all(f"The best {option.rule.name} found" in said for option in proposal.options[1:])


@pytest.mark.parametrize("preset", PRESETS)
def test_a_proposal_keeps_its_promise(preset):
    """Mean gaps of 2,000 runs within 40 % of the forecast. For a Gaussian error in one dimension the relative deviation
    of that mean is √(2/2000), 3.2 %, and of the 32 runs behind a simulated gap at most 25 % with a fixed seed: a forecast
    that is right to 10 % fails by chance with probability below 1e-9."""
    problem, steps, batch = small_quadratic(records=5000), 1000, 5
    proposal = cs.tune(problem, 4.0, 1e-5, steps, preset=preset, start=5.0, batch=batch)
    assert proposal.rule.name == preset
    assert [option.rule.name for option in proposal.options] == [preset]
    assert proposal.statement.certified <= 4.0
    found = gaps(problem, proposal.rule, steps, 5.0, 2000, seed=3).mean()
    assert found == pytest.approx(proposal.forecast.gap, rel=0.4)


@pytest.mark.parametrize(("steps", "kind"), [(200, cs.sampling.SinglePass), (201, cs.sampling.Cyclic)])
def test_correlated_noise_takes_one_pass_if_the_records_suffice(steps, kind):
    proposal = cs.tune(small_quadratic(records=1000), 4.0, 1e-5, steps, preset="CorrelatedSGD", batch=5, start=5.0)
    assert type(proposal.rule.sampling) is kind
    root = cs.CorrelatedSGD(proposal.rule.step, 1.0, 1.0, 5, "cyclic").noise.buffers
    assert proposal.rule.noise.buffers.shape != root.shape  # fitted to the steps


def test_full_batches_are_tracked_as_such():
    proposal = cs.tune(small_quadratic(records=100), 4.0, 1e-3, 50, preset="TrackedSGD", batch=100, start=5.0)
    assert isinstance(proposal.rule.sampling, cs.sampling.Full)
    assert proposal.statement.certified <= 4.0


@pytest.mark.parametrize("preset", ["DiceSGD", "CorrelatedSGD", "TrackedSGD"])
def test_presets_without_a_certificate_are_refused(preset):
    with pytest.raises(ValueError, match=f"must be PCSGD or AdaptiveDPSGD for adjacency 'add-remove'.*got '{preset}'"):
        cs.tune(small_quadratic(), 1.0, 1e-5, 100, preset=preset, adjacency="add-remove")


def test_simulations_that_take_too_long_are_left_out(monkeypatch):
    monkeypatch.setattr(simulation, "_MOST_WORK", 0.0)
    proposal = cs.tune(small_quadratic(records=500), 4.0, 1e-3, 100, start=5.0, adjacency="add-remove")
    assert [option.rule.name for option in proposal.options] == ["PCSGD"]
    assert "AdaptiveDPSGD was not tried" in str(proposal)
    named = cs.tune(
        small_quadratic(records=500), 4.0, 1e-3, 100, preset="AdaptiveDPSGD", start=5.0, adjacency="add-remove"
    )
    assert named.rule.name == "AdaptiveDPSGD"
    assert named.rule.sampling.rate == 1 / 500


def test_simulations_do_not_follow_gains_of_no_worth(monkeypatch):
    """A gap that falls by a thousandth per third of the clipped share does not lead to a share of nearly nothing."""

    def ends(task, rule, replicates, seed):
        return np.full((replicates, 1), np.sqrt(1.0 + 1e-3 * np.log(1.0 - rule.clip.quantile)))

    monkeypatch.setattr(simulation, "_ends", ends)
    problem = small_quadratic(records=500)
    found = cs.tune(problem, 4.0, 1e-3, 100, preset="AdaptiveDPSGD", start=5.0, adjacency="add-remove")
    assert 1.0 - found.rule.clip.quantile > 1e-4


def test_simulated_gaps_are_split_without_bias():
    """Of 10⁵ runs around (1, 0) with variance 3 in all: bias 1 and spread 3, each within 6 standard errors (below 2 %)."""
    ends = np.array([1.0, 0.0]) + np.random.default_rng(0).standard_normal((100_000, 2)) * np.sqrt([1.0, 2.0])
    found = simulation._gap_of(ends, np.zeros(2))
    assert found.bias == pytest.approx(1.0, abs=0.06)
    assert found.spread == pytest.approx(3.0, rel=0.03)
    assert found.gap == pytest.approx(np.mean(np.sum(ends**2, axis=1)))
    assert simulation._gap_of(np.full((2, 2), np.inf), np.zeros(2)).gap == np.inf


def test_the_goal_of_a_bound():
    """The proposal has a smaller proven bound than anything on a grid, and runs stay below it."""
    problem, steps = small_quadratic(), 5000
    proposal = cs.tune(problem, 1.0, 1e-5, steps, goal="bound", start=5.0)
    target = cs.stable_point(problem).theta
    about = {"start_gap": float((5.0 - target[0]) ** 2), "dimension": 1, "iterations": steps}
    noise = proposal.rule.noise.std / proposal.rule.clip.threshold
    bounds = [
        sharp_clipped_sgd_bound(problem.constants(), step, clip, noise * clip, **about)
        for step in STEPS
        for clip in np.geomspace(0.1, 50, 30)
    ]
    assert proposal.options[0].bound <= 1.01 * min(bounds)
    assert gaps(problem, proposal.rule, steps, 5.0, 50, seed=0).mean() < proposal.options[0].bound
    assert "What is proven" in str(proposal)
    with pytest.raises(ValueError, match="preset must be PCSGD for the goal 'bound'"):
        cs.tune(problem, 1.0, 1e-5, steps, goal="bound", preset="DiceSGD", start=5.0)


def test_what_is_proven_knows_how_batches_are_drawn():
    """Poisson batches of one record: min{c, G}² counts twice. And no passes over the data, which need least noise here."""
    problem, steps = small_quadratic(), 500
    proposal = cs.tune(problem, 1.0, 1e-5, steps, "bound", start=5.0, adjacency="add-remove")
    known, rule = problem.constants(), proposal.options[0].rule
    noise = np.hypot(rule.noise.std, min(rule.clip.threshold, known.gradient_bound))
    gap = float((5.0 - cs.stable_point(problem).theta[0]) ** 2)
    bound = sharp_clipped_sgd_bound(known, rule.step, rule.clip.threshold, noise, gap, 1, steps)
    assert proposal.options[0].bound == pytest.approx(bound, rel=1e-9)
    few = problem.on(problem.features[:1000])
    assert isinstance(cs.tune(few, 20.0, 1e-5, 1000, start=5.0, preset="PCSGD").rule.sampling, cs.sampling.Epochs)
    assert isinstance(cs.tune(few, 20.0, 1e-5, 1000, "bound", start=5.0).rule.sampling, cs.sampling.Uniform)


def test_what_cannot_be_promised_is_refused():
    problem = small_quadratic()
    with pytest.raises(ValueError, match="start must lie in the region"):
        cs.tune(problem, 1.0, 1e-5, 100, start=50.0)
    repels = small_quadratic(beta=0.11)  # β > μ/L = 0.1
    with pytest.raises(ValueError, match="models are drawn to, got one with rates of decay from -0.1 to -0.1"):
        cs.tune(repels, 1.0, 1e-5, 100)
    about = {"response": problem.response, "region": problem.region}
    odd = cs.Problem(problem.features, np.zeros(problem.records), loss=Shifted(10.0), **about)
    with pytest.raises(ValueError, match="goal must be 'gap' where constants are estimates: strong_convexity"):
        cs.tune(odd, 1.0, 1e-5, 100, goal="bound")


class Shifted(NamedTuple):
    """The quadratic loss as a user's part, whose constants are only estimated."""

    a: float


@cs.implements(cs.losses.value, Shifted)
def _(loss, theta, features, label):
    return 0.5 * (theta[0] + loss.a * features[0]) ** 2


@cs.implements(cs.losses.gradient, Shifted)
def _(loss, theta, features, label, out):
    out[0] = theta[0] + loss.a * features[0]


def test_dice_thresholds():
    rule = cs.tune(small_quadratic(), 4.0, 1e-5, 10_000, preset="DiceSGD", start=5.0).rule
    assert rule.feedback.clip.threshold == rule.clip.threshold
    assert rule.feedback.cap.threshold > rule.clip.threshold


def test_poisson_and_batches():
    problem = small_quadratic()
    proposal = cs.tune(problem, 1.0, 1e-5, 1000, preset="PCSGD", batch=50, start=5.0, adjacency="add-remove")
    assert isinstance(proposal.rule.sampling, cs.sampling.Poisson)
    assert proposal.rule.sampling.batch == 50
    assert proposal.statement.certified <= 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"goal": "risk"}, "goal must be one of"),
        ({"preset": "SGD"}, "preset must be one of"),
        ({"adjacency": "swap"}, "adjacency must be one of"),
        ({"epsilon": 0.0}, "epsilon must be a number above 0"),
        ({"steps": 0}, "steps must be"),
        ({"start": [1.0, 2.0]}, "start must"),
    ],
)
def test_bad_input(change, words):
    about = {"epsilon": 1.0, "delta": 1e-5, "steps": 100, **change}
    with pytest.raises((ValueError, TypeError), match=words):
        cs.tune(small_quadratic(), **about)


def test_a_problem_without_gradients_is_refused():
    with pytest.raises(ValueError, match="gradient that is not zero"):
        cs.tune(cs.Problem([0.0, 0.0], loss=cs.losses.Quadratic(a=1.0)), 1.0, 0.1, 10)


@pytest.mark.verify
@pytest.mark.filterwarnings("ignore:δ = 1e-05 is at least:clipsilon.PrivacyWarning")  # paper 1's own δ and records
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("name", ["quadratic", "credit"])
def test_within_one_and_a_half_of_a_grid_search(name, epsilon):
    """Paper 1's two problems at 10⁵ steps. Measured ratios: 0.86 to 0.95. The best rule of the grid is run again with
    fresh draws; the two means have relative deviations of at most 5 % (1,000 runs in one dimension, 300 in ten), so a
    true ratio of 1 passes 1.5 by chance with probability below 1e-9."""
    case = quadratic_case() if name == "quadratic" else credit_case()[0]
    problem, start, steps = case.problem, case.start, 100_000
    clips, runs = (np.geomspace(0.3, 30, 9), 1000) if name == "quadratic" else (np.geomspace(0.2, 50, 9), 300)
    proposal = cs.tune(problem, epsilon, 1e-5, steps, preset="PCSGD", start=start)
    noise = proposal.rule.noise.std / proposal.rule.clip.threshold
    best = best_of_grid(problem, noise, clips, steps, start, replicates=6)
    found, wanted = (gaps(problem, rule, steps, start, runs, seed=2).mean() for rule in (proposal.rule, best))
    assert found <= 1.5 * wanted
