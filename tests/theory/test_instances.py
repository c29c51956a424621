"""Paper 5's hard instances: the lower bound is respected and nearly attained; clipping costs what Theorem D.4 states."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import betaln, gammaln

import clipsilon as cs
import reference
from clipsilon.theory import glm, instances

RECORDS, RANK, EPSILON, DELTA = 200, 10, 0.01, 1e-7


def risks(problem, *models):
    return [float(cs.metrics.performative_risk(problem, model)) for model in models]


def test_the_instance_is_as_described():
    drawn = instances.hard_instance(RECORDS, RANK, EPSILON, dimension=15, seed=4)
    x, y = drawn.problem.features, drawn.problem.labels
    assert x.shape == (RECORDS, 15)
    assert set(np.unique(x)) == {0.0, 1.0}
    assert x.sum(axis=1).max() == 1.0
    assert not x[:, RANK:].any()
    assert not y[x.sum(axis=1) == 0].any()
    assert np.linalg.norm(drawn.minimiser) <= np.sqrt(RANK)
    assert glm.row_space(drawn.problem, minimiser=drawn.minimiser).dimension <= RANK
    # No other corner is better, so no other model is: the loss is convex and piecewise linear in each entry.
    best = risks(drawn.problem, drawn.minimiser)[0]
    for j in range(15):
        for entry in (0.0, 0.5, 1.0):
            other = drawn.minimiser.copy()
            other[j] = entry
            assert risks(drawn.problem, other)[0] >= best - 1e-15


def test_the_instance_has_the_right_shares():
    """A fraction α of 300 · 200 records is not zero, within six standard errors (a false alarm in 10⁸)."""
    drawn = [instances.hard_instance(RECORDS, RANK, EPSILON, seed=seed) for seed in range(300)]
    share = RANK / (10 * np.expm1(EPSILON) * RECORDS)
    taken = np.mean([one.problem.features.sum() for one in drawn]) / RECORDS
    assert taken == pytest.approx(share, abs=6 * np.sqrt(share * (1 - share) / (300 * RECORDS)))
    assert instances.hard_instance(RECORDS, RANK, 1e-4, seed=0).problem.features.any(axis=1).all()  # α = 1


def descents(step_of, noise_std, steps, count=200):
    """Return the excess risk of private descent on `count` instances, each with its own step."""
    found = []
    for seed in range(count):
        drawn = instances.hard_instance(RECORDS, RANK, EPSILON, seed=seed)
        rule = reference.descent(step_of(drawn), noise_std)
        output = cs.run(drawn.problem, rule, steps, seed=seed, record=[steps]).output[0]
        ahead, best = risks(drawn.problem, output, drawn.minimiser)
        found.append(ahead - best)
    return np.array(found)


def test_theorem_3_3_is_respected_and_nearly_attained_by_private_descent():
    """Certified noise, 20 steps. The best of three step sizes loses 4.7 times the bound; the stated factor is 6.

    With so little data for its ε the best that descent can do is hardly to move: the start itself loses 4.5 times the
    bound. All margins are 12 standard errors of the mean over 200 instances and more.
    """
    steps = 20
    bound = instances.lower_bound(RECORDS, RANK, EPSILON, DELTA)
    noise_std = glm.private_noise(1.0, EPSILON, DELTA, RECORDS, steps)
    means = []
    for step in (1e-3, 1e-2, 1e-1):
        found = descents(lambda drawn, step=step: step, noise_std, steps)
        assert found.mean() - 6 * found.std(ddof=1) / np.sqrt(found.size) > bound
        means.append(found.mean())
    assert min(means) < 6 * bound


def test_private_descent_keeps_between_its_bounds():
    """At the step of Theorem 3.1, on the same instances: below the upper bound, above the lower."""
    steps = 20
    noise_std = glm.private_noise(1.0, EPSILON, DELTA, RECORDS, steps)
    drawn = [instances.hard_instance(RECORDS, RANK, EPSILON, seed=seed) for seed in range(200)]
    geometries = [glm.row_space(one.problem, minimiser=one.minimiser) for one in drawn]
    upper = np.mean([glm.excess_risk(geometry, noise_std, steps) for geometry in geometries])
    sizes = iter([glm.best_step(geometry, noise_std, steps) for geometry in geometries])
    found = descents(lambda drawn: next(sizes), noise_std, steps)
    spread = 6 * found.std(ddof=1) / np.sqrt(found.size)
    assert instances.lower_bound(RECORDS, RANK, EPSILON, DELTA) < found.mean() - spread
    assert found.mean() + spread < upper


def test_without_privacy_the_bound_is_beaten():
    """Descent without noise finds the minimum, so privacy causes the loss."""
    found = descents(lambda drawn: 1.0, 0.0, 500, count=20)
    assert found.mean() < 0.1 * instances.lower_bound(RECORDS, RANK, EPSILON, DELTA)


@pytest.mark.parametrize("epsilon", [1e-3, 0.01, np.log(21 / 20)])
@pytest.mark.parametrize("rank", [1, 10, 300])
@pytest.mark.parametrize("records", [1, 50, 10_000, 10**7])
def test_the_bound_is_at_least_the_printed_one(epsilon, rank, records):
    """Corollary B.4: min{1/20, d/(210εn)} − 2δ, for e^ε ≤ 21/20 and δ ≤ α·(e^ε − 1)/1000."""
    share = min(1.0, rank / (10 * np.expm1(epsilon) * records))
    for delta in (0.0, 1e-3 * share * np.expm1(epsilon)):
        printed = min(1 / 20, rank / (210 * epsilon * records)) - 2 * delta
        assert instances.lower_bound(records, rank, epsilon, delta) >= printed - 1e-15


def best_private_excess(records, epsilon, delta):
    """Return the smallest mean excess of any private algorithm on `hard_instance` of rank 1, by linear programming.

    The loss is linear on [0, 1], so that an algorithm is the chance of θ = 1 for each number of ones and of zeros.
    """
    share = min(1.0, 1 / (10 * np.expm1(epsilon) * records))
    counts = [(ones, zeros) for ones in range(records + 1) for zeros in range(records + 1 - ones)]
    place = {count: k for k, count in enumerate(counts)}
    ones, zeros = np.array(counts).T
    ways = gammaln(records + 1) - gammaln(ones + 1) - gammaln(zeros + 1) - gammaln(records - ones - zeros + 1)
    weight = np.exp(ways) * moments(1 / 80, ones, zeros) * share ** (ones + zeros)
    weight *= (1 - share) ** (records - ones - zeros)
    assert weight.sum() == pytest.approx(1.0)
    rows, limits = [], []
    for (a, b), (da, db) in itertools.product(counts, [(1, -1), (-1, 1), (1, 0), (-1, 0), (0, 1), (0, -1)]):
        if (a + da, b + db) in place:
            row = np.zeros(len(counts))
            row[place[a, b]], row[place[a + da, b + db]] = 1.0, -np.exp(epsilon)
            rows += [row, -row]
            limits += [delta, np.expm1(epsilon) + delta]
    solved = linprog(weight * (zeros - ones) / records, A_ub=np.array(rows), b_ub=limits, bounds=(0, 1))
    return solved.fun + (weight * (ones - np.minimum(ones, zeros))).sum() / records


@pytest.mark.parametrize("records", [1, 2, 5, 9])
@pytest.mark.parametrize("epsilon", [1e-3, 0.0488, 0.2])
def test_the_bound_is_below_the_best_that_can_be_done(records, epsilon):
    for delta in (0.0, 1e-4):
        best = best_private_excess(records, epsilon, delta)
        assert 0.0 <= instances.lower_bound(records, 1, epsilon, delta) < 0.5 * best


def test_a_large_epsilon_costs_nothing():
    assert instances.lower_bound(10, 1, 1000.0, 0.0) == 0.0


def test_the_lower_bound_is_below_the_upper():
    """By a factor of at most 210·√(1/d + 2·log(1/δ))·√(1 + 1/T) with the paper's noise and ‖θ*‖ = √d."""
    for rank, records in ((1, 5000), (30, 5000), (100, 50_000)):
        geometry = glm.Geometry(rank, np.sqrt(rank), 1.0)
        above = glm.private_excess_risk(geometry, 0.04, 1e-8, records, how="paper")
        below = instances.lower_bound(records, rank, 0.04, 1e-8)
        assert 1 < above / below < 210 * np.sqrt(1 / rank + 2 * np.log(1e8)) * 1.001


def moments(shape, heads, tails):
    """Return E[P^heads·(1 − P)^tails] for P ~ Beta(shape, shape)."""
    return np.exp(betaln(shape + heads, shape + tails) - betaln(shape, shape))


def test_the_fingerprinting_lemma_by_enumeration():
    """Lemma B.2, on which the bound rests: E[f(Z)·Σ(Z_i − P)] = β·E[(f − ½)² + (P − ½)² − (f − P)²], for any f."""
    shape, n = 1 / 80, 4
    values = np.random.default_rng(0).uniform(-1, 2, 2**n)
    left = right = 0.0
    for f, bits in zip(values, itertools.product((0, 1), repeat=n), strict=True):
        k = sum(bits)
        plain, head, square = (moments(shape, k + more, n - k) for more in range(3))  # E[…], E[… P], E[… P²]
        left += f * (k * plain - n * head)
        spread, error = square - head + plain / 4, f**2 * plain - 2 * f * head + square
        right += shape * ((f - 0.5) ** 2 * plain + spread - error)
    assert left == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("clip", [0.6, 0.5, 0.4, 0.24, 0.1, 1e-3])
def test_theorem_d_4_in_closed_form(clip):
    """The point holds up to ½, and not only below ¼ as printed."""
    found = instances.aggressive_clipping(clip, copies=4)
    assert found.problem.records == 12
    assert cs.stable_point(found.problem).theta == pytest.approx(found.stable, abs=1e-8)
    if clip != 0.5:  # there the field has a kink
        assert cs.clipped_point(found.problem, clip).theta == pytest.approx(found.clipped, abs=1e-7)
    high, low = risks(found.problem, np.array([found.clipped]), np.array([0.0]))
    assert high - low == pytest.approx(found.excess_risk, abs=1e-12)


def test_theorem_d_4s_rate():
    for clip in (1e-3, 1e-6, 1e-9):
        expected = 2 / 3 * np.log(1 / clip) - np.log(2)
        assert instances.aggressive_clipping(clip).excess_risk == pytest.approx(expected, abs=clip)
        assert instances.aggressive_clipping(clip).excess_risk > np.log(1 / clip) / 60  # as the proof states


def test_clipped_private_descent_ends_there():
    """The excess of a run agrees with the closed form to 1 %; nothing is fitted."""
    found = instances.aggressive_clipping(0.1)
    last = cs.run(found.problem, reference.descent(5.0, 1e-4, clip=0.1), 3000, seed=0).theta[0, -1]
    high, low = risks(found.problem, last, np.zeros(1))
    assert high - low == pytest.approx(found.excess_risk, rel=0.01)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: instances.hard_instance(10, 5, 0.0), "epsilon must be a number above 0"),
        (lambda: instances.hard_instance(10, 5, 0.1, dimension=4), "dimension must be a whole number of at least 5"),
        (lambda: instances.lower_bound(10, 0, 0.1, 0.0), "rank must be a whole number"),
        (lambda: instances.lower_bound(10, 1, 0.1, 1.0), "delta must be a number in"),
        (lambda: instances.aggressive_clipping(0.0), "clip must be a number above 0"),
    ],
)
def test_bad_input_is_refused(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt()
