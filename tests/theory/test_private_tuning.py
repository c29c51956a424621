"""`tune(private=True)`: the sketch and the run together keep to the budget, and nothing else is read."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from numpy.random import SFC64, Generator

import clipsilon as cs
from clipsilon.engine.exact_noise import clip_to_grid, release
from clipsilon.privacy import quantiles
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.auditing.canaries import Linear
from clipsilon.privacy.auditing.inference import clopper_pearson_bound
from clipsilon.rules.clipping import Norm
from clipsilon.theory.tuning import sketch as sketching
from clipsilon.theory.tuning.private import SHARE, private_rule
from clipsilon.theory.tuning.task import Budget

BUDGET = Budget(2.0, 1e-5, "replace-one")


def logistic(seed=0, records=5000):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((records, 3)) * [0.5, 1.0, 2.0]
    labels = (rng.random(records) < 1 / (1 + np.exp(-features @ [1.0, -1.0, 0.5]))).astype(float)
    about = {"loss": cs.losses.Logistic(l2=0.1), "response": cs.responses.BestResponse(beta=0.2)}
    return cs.Problem(features, labels, **about)


def quadratic(records=5000):
    data = cs.datasets.bernoulli(records, p=0.1)
    return cs.Problem(data, loss=cs.losses.Quadratic(a=10.0), response=cs.responses.LocationShift(beta=0.05))


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_sketch_and_run_together_keep_to_the_budget(adjacency, monkeypatch):
    asked, clipped = [], []
    monkeypatch.setattr(
        sketching, "draw_whole", lambda rng, std, size: asked.append((std, size)) or np.zeros(size, dtype=np.int64)
    )
    monkeypatch.setattr(
        sketching, "clip_to_grid", lambda rows, *about: clipped.append(about) or clip_to_grid(rows, *about)
    )
    monkeypatch.setattr(
        sketching, "release", lambda total, scale, rng: clipped.append(scale) or release(total, scale, rng)
    )
    problem = logistic()
    proposal = cs.tune(problem, 2.0, 1e-5, 2000, adjacency=adjacency, private=True)
    run = cs.account(proposal.rule, problem.records, 2000, 1e-5, adjacency)
    change = 2.0 if adjacency == "replace-one" else 1.0
    ((clip, grid_scale), scale) = clipped
    assert grid_scale == scale
    spent = change * math.sqrt(sum(size / std**2 for std, size in asked) + (clip / scale) ** 2)
    assert spent**2 == pytest.approx(SHARE * gaussian.largest_mu(2.0, 1e-5) ** 2, rel=1e-6)
    together = gaussian.epsilon(math.hypot(spent, run.certificate.profile.mu), 1e-5)
    assert 0.98 * 2.0 < together <= proposal.statement.certified <= 2.0
    assert proposal.statement.epsilon(1e-5) == proposal.statement.certified
    assert proposal.statement.adjacency == adjacency
    assert proposal.statement.rule == "CorrelatedSGD after a private sketch"
    assert run.certified < proposal.statement.certified
    assert "Certified for this proposal and one run" in str(proposal)


def test_the_records_are_read_through_noisy_counts_and_a_noisy_sum_only(monkeypatch):
    """With the same answers to the same questions, and the same sum, two data sets get the same proposal."""
    asked = []

    def scripted(table, thresholds):
        asked.append(thresholds.tolist())
        return np.where(thresholds < 0.3, -table.shape[0] // 2, table.shape[0] // 2)

    monkeypatch.setattr(sketching, "balances", scripted)
    monkeypatch.setattr(sketching, "release", lambda total, scale, rng: np.full(total.size, 500.0))
    found, questions = [], []
    for problem in (logistic(seed=1), logistic(seed=2)):
        rule, statement, sketch = private_rule(problem, BUDGET, 1000, 2, np.zeros(3), Generator(SFC64(5)))
        found.append((rule.step, rule.clip, rule.noise.std, rule.noise.buffers.tolist(), sketch, statement.reasons))
        questions.append(asked.copy())
        asked.clear()
    assert found[0] == found[1]
    assert questions[0] == questions[1]
    assert len(questions[0]) == sketching.ASKED


def test_what_is_counted_of_a_record_depends_on_no_other():
    problem, start = logistic(records=50), np.full(3, 0.3)
    other = problem.features.copy()
    other[7] = [100.0, -3.0, 5.0]
    changed = cs.Problem(other, problem.labels, loss=problem.loss, response=problem.response)
    for measure in (
        lambda one: sketching.gradient_norms(one, start, start, 1).ravel(),
        lambda one: sketching.curvatures(one, start),
    ):
        before, after = measure(problem), measure(changed)
        assert np.flatnonzero(before != after).tolist() == [7]


class Seldom(NamedTuple):
    """Writes the record after its reaction only if it begins with a positive number."""


@cs.implements(cs.responses.respond, Seldom)
def _(response, deployed, features, label, moved, rng):
    if features[0] > 0.0:
        for j in range(features.size):
            moved[j] = features[j]
    return label


@cs._core.parts.traits(labels="none")
class Seldomly(NamedTuple):
    """Writes a gradient only for records that begin with a positive number."""


@cs.implements(cs.losses.value, Seldomly)
def _(loss, theta, features, label):
    return 0.0


@cs.implements(cs.losses.gradient, Seldomly)
def _(loss, theta, features, label, out):
    if features[0] > 0.0:
        for j in range(theta.size):
            out[j] = features[j] * (1.0 + theta[j])


@pytest.mark.parametrize("parts", [(Linear(), Seldom()), (Seldomly(), None)], ids=["response", "loss"])
def test_parts_of_the_user_do_not_carry_numbers_from_one_record_to_the_next(parts):
    """As in a run: what a part does not write is NaN, and counted nowhere."""
    start, found = np.zeros(2), []
    for own in (5.0, 7.0):
        features = np.array([[1.0, own], [-1.0, 1.0], [-2.0, 1.0]])
        problem = cs.Problem(features, loss=parts[0], response=parts[1])
        lengths = sketching.gradient_norms(problem, start, start, 1)[:, 0]
        found.append(
            (lengths, sketching.curvatures(problem, start), sketching.record_gradients(problem, start, Norm(1)))
        )
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one[1:], other[1:])
        assert np.isnan(one[1:]).all()


def test_a_record_of_weight_0_is_counted_nowhere(monkeypatch):
    """Zeroing out a record changes an answer by 1, not by 2 as if its gradient of 0 were counted."""
    answers = []

    def scripted(table, thresholds):
        answers.append(quantiles.balances(table, thresholds))
        return np.where(thresholds < 0.3, -table.shape[0] // 2, table.shape[0] // 2)

    monkeypatch.setattr(sketching, "balances", scripted)
    weights, counted = np.ones(5000), []
    for weight in (1.0, 0.0):
        weights[7] = weight
        about = {"loss": cs.losses.Logistic(l2=0.1), "weights": weights}
        problem = cs.Problem(logistic().features, logistic().labels, **about)
        sketching.take_sketch(problem, np.zeros(3), 0.9, 20.0, 20.0, Generator(SFC64(5)))
        counted.append(np.array(answers))
        answers.clear()
    assert np.abs(counted[0] - counted[1]).max() == 1


@pytest.mark.filterwarnings("error")
def test_no_warning_reveals_a_gradient_that_is_not_finite():
    features = np.ones((50, 2))
    features[7] = 1e200
    problem = cs.Problem(features, np.zeros(50), loss=cs.losses.SquaredError())
    assert np.flatnonzero(~np.isfinite(sketching.curvatures(problem, np.ones(2)))).tolist() == [7]


def test_curvatures_are_traces():
    problem, start = logistic(records=50), np.array([0.5, -0.2, 0.1])
    assert sketching.curvatures(quadratic(10), np.zeros(1)) == pytest.approx(np.full(10, 1 - 10.0 * 0.05), rel=1e-6)
    still = cs.Problem(problem.features, problem.labels, loss=problem.loss)
    p = 1 / (1 + np.exp(-problem.features @ start))
    expected = p * (1 - p) * np.sum(problem.features**2, axis=1) + 3 * 0.1
    assert sketching.curvatures(still, start) == pytest.approx(expected, rel=1e-6)


def test_the_mean_is_that_of_clipped_gradients_and_skips_what_is_not_finite():
    """The noise is 1e-5 per coordinate; false alarm below 1e-12 at 10 deviations."""
    features = np.array([[3.0, 4.0], [0.3, 0.4], [3e200, 4e200], [0.0, 0.0]])
    problem = cs.Problem(features, np.ones(4), loss=cs.losses.SquaredError())
    about = (np.zeros(2), 1.0, 4e-5, Generator(SFC64(1)))
    assert sketching._mean_length(problem, *about) == pytest.approx((1.0 + 0.5 + 1.0) / 4, abs=1e-4)
    overflown = cs.Problem(features, np.full(4, 1e200), loss=cs.losses.SquaredError())
    assert np.isfinite(sketching._mean_length(overflown, *about))


def attack(cut, runs=8000):
    """Attack a quantile of the smallest data set that is sketched, with one record replaced; return bound and statement.

    Columns are searched independently, so many columns with the noise of one are as many sketches of one column.
    """
    n, delta = 80, 0.01
    std = 2 * n * quantiles.WORST_ERROR * 0.99
    mu = 2.0 * math.sqrt(sketching._QUESTIONS) / std
    even = np.repeat([1.0, 4.0], n // 2)
    uneven = np.where(np.arange(n) == 0, 4.0, even)
    found = [
        sketching.private_quantiles(np.repeat(column[:, None], runs, axis=1), 0.5, std / cut, Generator(SFC64(seed)))
        for seed, column in enumerate((even, uneven))
    ]
    return clopper_pearson_bound(*found, delta, confidence=1 - 1e-6).lower_bound, gaussian.epsilon(mu, delta)


def test_an_attack_stays_below_what_is_stated():
    """With confidence 1 − 1e-6; the attack is not vacuous."""
    shown, stated = attack(cut=1)
    assert 0.05 < shown < stated


def test_the_attack_would_find_a_sixteenth_of_the_noise():
    shown, stated = attack(cut=16)
    assert shown > stated


@pytest.mark.parametrize(
    ("problem", "start", "steps", "batch", "most"),
    [(quadratic(), 5.0, 5000, 1, 0.01), (logistic(), 0.0, 1250, 4, 0.2), (logistic(), 0.0, 5000, 4, 0.2)],
    ids=["quadratic", "logistic, one pass", "logistic, four passes"],
)
def test_a_run_comes_closer(problem, start, steps, batch, most):
    """With fixed seeds: four sketches, and three runs of each."""
    target = cs.stable_point(problem).theta
    begin = np.full(target.size, start)
    gaps = []
    for seed in range(4):
        rule = private_rule(problem, BUDGET, steps, batch, begin, Generator(SFC64(seed)))[0]
        ends = cs.run(problem, rule, steps, start, replicates=3, seed=seed, progress=False).output
        gaps.append(np.mean(np.sum((ends - target) ** 2, axis=1)))
    assert max(gaps) < most * np.sum((begin - target) ** 2), gaps


def test_two_calls_take_two_sketches():
    problem = logistic()
    one, other = (cs.tune(problem, 2.0, 1e-5, 1000, private=True) for _ in range(2))
    assert one.rule.clip != other.rule.clip
    assert one.forecast is None
    assert one.options == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"preset": "PCSGD"}, "preset must be CorrelatedSGD for private tuning, got 'PCSGD'"),
        ({"goal": "bound"}, "goal must be 'gap' for private tuning"),
        ({"adjacency": "add-remove"}, "adjacency must be 'replace-one' or 'zero-out' here"),
        ({"epsilon": 1e-3}, "epsilon must be larger for private tuning on 5000 records"),
        ({"batch": 10_000}, "batch must be at most the number of records"),
        ({"delta": 1.0}, "delta must be"),
        ({"private": "yes"}, "private must be"),
    ],
)
def test_what_cannot_be_tuned_privately_is_refused(change, words):
    about = {"epsilon": 2.0, "delta": 1e-5, "steps": 100, "private": True, **change}
    with pytest.raises(ValueError, match=words):
        cs.tune(logistic(), **about)
