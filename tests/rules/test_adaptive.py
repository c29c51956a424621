"""Adaptive clipping in the engine: what a record adds to sum and count, the noise on the count, and the threshold."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

import clipsilon as cs
import reference
from clipsilon._core.exact_normal import integer_normal
from clipsilon.engine import remote
from clipsilon.engine.arrays import Models, Records
from clipsilon.engine.grid import scaling, step_grid
from clipsilon.privacy.auditing.canaries import Linear
from clipsilon.problems.responses import Identity
from clipsilon.rules.clipping import Adaptive, Norm, _CountedNorm, adapt, noisy_count, suggest_quantile
from clipsilon.rules.feedback import NoFeedback
from clipsilon.rules.noise import Gaussian, Proportional
from clipsilon.rules.sampling import Full

THRESHOLD, MULTIPLIER, WIDTH = 0.7, 1.5, 3
quick = settings(max_examples=150, deadline=None, derandomize=True)


def sums(loss, table, threshold=THRESHOLD):
    """The sum of a step, in units of the grid, twice its count, and the longest sum that one record may add."""
    job = remote.Job(loss, Identity(), NoFeedback(), Full(), 10)
    problem = cs.Problem(np.ones((10, WIDTH)), loss=Linear())
    rule = cs.Rule("adaptive", cs.schedules.Constant(0.1), Adaptive(1.0, 0.5, 0.1, 1.0), Full(), Proportional(1.5))
    grid = step_grid(scaling(problem, rule, 1), threshold, MULTIPLIER * threshold / 10, WIDTH)
    theta = np.array([0.3, -0.2, 0.1])
    step = remote.Step(0, Models(theta, theta), _CountedNorm(threshold), grid, 1, [])
    into = remote.no_sums(job, step)
    remote.add_records(job, step, table, into)
    return into.v, into.counts[0], threshold / 10 / grid.unit


NEAR = [THRESHOLD, np.nextafter(THRESHOLD, 0), np.nextafter(THRESHOLD, 1), THRESHOLD * (1 - 1e-12)]
lengths = st.one_of(st.sampled_from([*NEAR, 0.0, 1e-250, 1e250, np.inf, np.nan]), st.floats(0, 10))
records = st.tuples(lengths, st.integers(0, 2**32 - 1))


def row(record, finite=None):
    """A vector of this length in a random direction, or along an axis; `finite` in the place of a length that is not."""
    length, seed = record
    length = length if finite is None or np.isfinite(length) else finite
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(WIDTH) if seed % 2 else np.eye(WIDTH)[seed % WIDTH]
    with np.errstate(invalid="ignore"):
        return direction / np.linalg.norm(direction) * length


@pytest.mark.parametrize("loss", [Linear(), cs.losses.Logistic()], ids=["gradients", "margins"])
@quick
@given(
    others=st.lists(records, min_size=1, max_size=9),
    first=records,
    second=records,
    place=st.integers(0, 9),
    many=st.floats(0.5, 20),
)
@example(others=[(0.1, 1)], first=(np.nan, 0), second=(np.inf, 1), place=0, many=1.0)
@example(others=[(0.1, 1)], first=(THRESHOLD, 0), second=(NEAR[2], 0), place=1, many=1.0)
def test_no_record_changes_sum_and_count_by_more_than_is_certified(loss, others, first, second, place, many):
    """Whatever the others are, and wherever it stands: by one bound and ½ if zeroed out or removed, else by twice."""
    # A problem's features are finite; gradients are not, where a loss overflows.
    finite = 1e300 if isinstance(loss, cs.losses.Logistic) else None
    rest, *own = (np.atleast_2d([many * row(one, finite) for one in some]) for some in (others, [first], [second]))
    place, y = min(place, len(rest)), np.arange(len(rest) + 1) % 2.0
    tables = [np.insert(rest, place, one, axis=0) for one in own]
    weights = np.ones(len(rest) + 1)
    weights[place] = 0.0
    with_first, with_second = (sums(loss, Records(x, y, np.ones_like(weights))) for x in tables)
    zeroed = sums(loss, Records(tables[0], y, weights))
    removed = sums(loss, Records(rest, np.delete(y, place), np.ones(len(rest))))
    np.testing.assert_array_equal(zeroed[0], removed[0])
    assert zeroed[1] == removed[1]
    longest = zeroed[2]
    for pair, most in (((with_first, zeroed), 1), ((with_first, with_second), 2)):
        assert np.linalg.norm(pair[0][0] - pair[1][0]) <= most * longest
        assert abs(pair[0][1] - pair[1][1]) in ((1,) if most == 1 else (0, 2))
    for v, doubled, _ in (with_first, with_second):
        np.testing.assert_array_equal(v, np.rint(v))
        assert doubled == np.rint(doubled)


def test_a_record_counts_by_the_norm_that_the_clip_sees():
    """At the threshold it counts +½ and is left as it is; a hair above, −½; so does one that is not finite."""
    for length, expected in [(THRESHOLD, 1), (NEAR[1], 1), (NEAR[2], -1), (0.0, 1), (np.inf, -1), (np.nan, -1)]:
        x = np.array([[length, 0.0, 0.0]])
        assert sums(Linear(), Records(x, np.zeros(1), None))[1] == expected
    for value in (np.inf, np.nan):
        assert not sums(Linear(), Records(np.array([[value, 0.0, 0.0]]), np.zeros(1), None))[0].any()


@pytest.mark.parametrize("loss", [Linear(), cs.losses.Logistic(0.1), cs.losses.Logistic()], ids=["g", "l2", "m"])
def test_order_and_chunks_change_neither_sum_nor_count(loss):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((100, WIDTH)), rng.integers(0, 2, 100).astype(float)
    whole = sums(loss, Records(x, y, None))
    order = rng.permutation(100)
    mixed = sums(loss, Records(x[order], y[order], None))
    parts = [sums(loss, Records(x[rows], y[rows], None)) for rows in np.split(np.arange(100), [1, 14, 77])]
    assert 0 < abs(whole[1]) < 100
    assert whole[1] == mixed[1] == sum(part[1] for part in parts)
    np.testing.assert_array_equal(mixed[0], whole[0])
    np.testing.assert_array_equal(sum(part[0] for part in parts), whole[0])


@pytest.mark.parametrize("std", [2.0**-5, 0.7, 12.5, 1e6, 2.0**30])
def test_the_count_has_exact_noise_of_at_least_the_stated_deviation(std):
    units = int((1 - 2**-50) * 2**31 / std)
    assert units * std <= 2**31 < (units + 2) * std
    for n in (-7, 0, 12):
        bits = np.random.default_rng(n + 10).bit_generator
        expected = (n * units + integer_normal(bits) + 0.5) / (2 * units)
        assert noisy_count(std, float(n), np.random.default_rng(n + 10)) == expected


def test_the_noise_of_the_count_is_normal():
    """False alarm: 1e-7 by construction of the Kolmogorov–Smirnov test."""
    rng = np.random.default_rng(0)
    draws = [noisy_count(1.7, 6.0, rng) for _ in range(4_000)]
    assert stats.kstest(draws, "norm", (3.0, 1.7)).pvalue > 1e-7


def test_the_fraction_is_of_the_public_batch_and_not_of_those_drawn():
    """14 records were drawn where 10 are expected, and none is clipped: the fraction is 1.2, and not 1."""
    clip = Adaptive(2.0, quantile=0.9, rate=0.5, count_noise=2.0**-5).on(10)
    state = np.array([2.0])
    adapt(clip, 1, np.array([14.0]), state, np.random.default_rng(0))
    noise = noisy_count(2.0**-5, 0.0, np.random.default_rng(0))
    assert np.log(state[0] / 2.0) == pytest.approx(-0.5 * (1.2 + noise / 10 - 0.9), rel=1e-9)


@pytest.mark.parametrize("side", [-1, 1])
def test_the_threshold_stays_within_public_bounds(side):
    clip = Adaptive(2.0, quantile=0.5, rate=1e4, count_noise=1.0).on(10)
    state = np.array([2.0])
    for t in range(3):
        adapt(clip, t, np.array([-side * 30.0]), state, np.random.default_rng(t))
        assert state[0] == 2.0 * 2.0 ** (30 * side)


def test_the_threshold_finds_the_quantile():
    """Norms are uniform in [0, 2]; the threshold that 80 % do not exceed is 1.6. Its noise is below 0.1 (6 sigma)."""
    clip, rng = Adaptive(0.01, quantile=0.8, rate=0.1, count_noise=5.0).on(200), np.random.default_rng(0)
    state, seen = np.array([0.01]), []
    for t in range(600):
        norms = rng.random(200) * 2
        adapt(clip, t, np.array([np.where(norms <= state[0], 1.0, -1.0).sum()]), state, rng)
        seen.append(state[0])
    assert np.mean(seen[300:]) == pytest.approx(1.6, abs=0.1)


def test_noise_in_proportion_to_a_constant_clip_is_gaussian_noise():
    case = reference.problem(cs.losses.Logistic(), records=200)
    rules = (
        cs.Rule("one", cs.schedules.Constant(0.3), Norm(0.8), cs.sampling.Poisson(40), noise)
        for noise in (Proportional(1.5), Gaussian(1.5 * (0.8 * (1 / 40))))
    )
    first, second = (cs.run(case, rule, 20, seed=1).theta for rule in rules)
    np.testing.assert_array_equal(first, second)


def test_noise_in_proportion_needs_a_bound():
    with pytest.raises(ValueError, match="clip must have a bound"):
        cs.Rule("one", cs.schedules.Constant(0.3), cs.clipping.Unclipped(), Full(), Proportional(1.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.5, 0.2, 1.0), "start must be a number above 0"),
        ((1.0, 1.0, 0.2, 1.0), "quantile must be a number above 0 and below 1"),
        ((1.0, 0.5, 0.0, 1.0), "rate must be a number above 0"),
        ((1.0, 0.5, 0.2, 0.01), r"count_noise must be a number between 1/32 and 2\*\*30, got 0.01"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        Adaptive(*arguments)


def test_the_suggested_quantile():
    assert suggest_quantile(11, 2.0, 500, 2_000) == pytest.approx(1 - 11**0.5 * 2 / (500 * 1_000**0.5))
    assert suggest_quantile(10_000, 100.0, 10, 2) == 0.5  # noise prevails
    assert suggest_quantile(1, 1e-300, 10, 1_000) < 1.0
