"""Audits claim only what they can prove: exact coverage where it can be computed, simulated elsewhere."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import linprog
from scipy.sparse import lil_array

from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.auditing.inference import (
    Counts,
    _at_ranks,
    _joint_limit,
    _rank_weights,
    _shift_limit,
    clopper_pearson_bound,
    gaussian_bound,
    lower_limit,
    rank_bound,
    tradeoff_points,
    upper_limit,
)
from clipsilon.privacy.auditing.one_run import one_run_bound, one_run_p_value

BOUNDS = [clopper_pearson_bound, gaussian_bound, rank_bound]
FALSE_ALARM = 1e-6


def most_failures(repeats, rate):
    """Return a count that events of probability at most `rate` exceed with probability below 1e-6."""
    return stats.binom.isf(FALSE_ALARM, repeats, rate)


# --- limits on one rate -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [0.3, 0.025, 1e-9])
@pytest.mark.parametrize("trials", [1, 2, 17, 400, 10**6])
def test_limits_are_those_of_scipy(trials, error):
    for successes in {0, 1, trials // 3, trials - 1, trials}:
        test = stats.binomtest(successes, trials, alternative="greater")
        low = test.proportion_ci(1 - error, method="exact").low
        test = stats.binomtest(successes, trials, alternative="less")
        high = test.proportion_ci(1 - error, method="exact").high
        # scipy works with 1 − error, which keeps 7 digits of an error of 1e-9.
        assert lower_limit(successes, trials, error) == pytest.approx(low, rel=1e-7)
        assert upper_limit(successes, trials, error) == pytest.approx(high, rel=1e-7)


@pytest.mark.parametrize("trials", [1, 2, 5, 20])
def test_limits_cover_exactly(trials):
    counts = np.arange(trials + 1)
    for error in (0.2, 0.01):
        low, high = lower_limit(counts, trials, error), upper_limit(counts, trials, error)
        np.testing.assert_allclose(high, 1 - low[::-1], atol=1e-14)
        jumps = low[1:] * (1 - 1e-9)
        for rate in np.concatenate([np.linspace(0, 1, 101), jumps]):
            assert stats.binom.pmf(counts, trials, rate)[low > rate].sum() <= error * (1 + 1e-6)
        # Just below a limit the error budget is used up: no narrower limit is possible.
        used = [stats.binom.pmf(counts, trials, rate)[low > rate].sum() for rate in jumps]
        np.testing.assert_allclose(used, error, rtol=1e-6)


# --- two rates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [0.3, 0.05])
@pytest.mark.parametrize("weights", [(math.sqrt(0.5), math.sqrt(0.5)), (0.28, 0.96)])
def test_shift_limit_covers_exactly(error, weights):
    """Enumerate all outcomes of 14 absent and 9 present runs, weighted by their probability."""
    runs = 14, 9
    outcomes = itertools.product(range(runs[0] + 1), range(runs[1] + 1))
    limits = np.array([_shift_limit(Counts(y, runs[1], x, runs[0]), error, weights) for x, y in outcomes])
    limits = limits.reshape(runs[0] + 1, runs[1] + 1)
    worst = 0.0
    for alarm_rate, hit_rate in itertools.product(np.linspace(0.01, 0.99, 50), repeat=2):
        absent = stats.binom.pmf(np.arange(runs[0] + 1), runs[0], alarm_rate)
        present = stats.binom.pmf(np.arange(runs[1] + 1), runs[1], hit_rate)
        shift = stats.norm.ppf(hit_rate) - stats.norm.ppf(alarm_rate)
        worst = max(worst, (np.outer(absent, present) * (limits > shift)).sum())
    assert worst <= error
    # The limit is tight: with weights that suit these rates, only discreteness is lost.
    assert worst > 0.3 * error or weights[0] != weights[1]


@given(st.integers(0, 50), st.integers(0, 50), st.sampled_from([0.3, 0.05, 1e-9]))
def test_shift_limit_grows_with_hits_and_falls_with_alarms(hits, alarms, error):
    weights = math.sqrt(0.5), math.sqrt(0.5)
    limit = _shift_limit(Counts(hits, 51, alarms, 51), error, weights)
    assert _shift_limit(Counts(hits + 1, 51, alarms, 51), error, weights) >= limit
    assert _shift_limit(Counts(hits, 51, alarms + 1, 51), error, weights) <= limit
    assert _shift_limit(Counts(hits, 51, alarms, 51), error / 2, weights) <= limit


def test_shift_limit_is_as_wide_as_the_normal_approximation_says():
    runs = 10**6
    limit = _shift_limit(Counts(600_000, runs, 500_000, runs), 0.05, (math.sqrt(0.5), math.sqrt(0.5)))
    estimate = stats.norm.ppf(0.6)
    spread = math.hypot(
        0.5 / stats.norm.pdf(0) / math.sqrt(runs), math.sqrt(0.24) / stats.norm.pdf(estimate) / math.sqrt(runs)
    )
    # The spare error, the grid and the weights cost less than 5 %.
    assert 1.0 < (estimate - limit) / (stats.norm.isf(0.05) * spread) < 1.05


# --- whole audits: validity ---------------------------------------------------------------------------


def randomized_response(generator, epsilon, runs):
    truthful = 1 / (1 + math.exp(-epsilon))
    return generator.random(runs) > truthful, generator.random(runs) < truthful


def laplace(generator, epsilon, runs):
    return generator.laplace(size=runs), generator.laplace(size=runs) + epsilon


@pytest.mark.parametrize("mechanism", [randomized_response, laplace])
def test_clopper_pearson_bound_rarely_exceeds_the_truth(mechanism):
    generator, repeats, confidence = np.random.default_rng(1), 600, 0.6
    bounds = [
        clopper_pearson_bound(*mechanism(generator, 1.0, 400), 0.0, confidence).lower_bound for _ in range(repeats)
    ]
    # False alarm below 1e-6: the guarantee is at most 40 % of the repeats.
    assert np.sum(np.array(bounds) > 1.0) <= most_failures(repeats, 1 - confidence)
    assert np.mean(bounds) > 0.4


@pytest.mark.parametrize("ties", [np.inf, 4.0, 1.0], ids=["continuous", "some equal", "many equal"])
@pytest.mark.parametrize("sizes", [(400, 400), (2000, 30), (15, 900)], ids=str)
def test_rank_bound_rarely_exceeds_the_truth(sizes, ties):
    """Of Laplace noise, rounded to a grid of 1/ties, which is a function of the noise and so no worse."""
    generator, repeats, confidence = np.random.default_rng(11), 500, 0.6

    def scores(runs, shift):
        found = generator.laplace(size=runs) + shift
        return found if ties == np.inf else np.round(found * ties) / ties

    bounds = [rank_bound(scores(sizes[0], 0.0), scores(sizes[1], 1.0), 0.0, confidence) for _ in range(repeats)]
    # False alarm below 1e-6: the guarantee is at most 40 % of the repeats.
    assert sum(bound.lower_bound > 1.0 for bound in bounds) <= most_failures(repeats, 1 - confidence)


def test_the_limit_at_one_rank_covers_as_often_as_stated():
    """One test alone, in the tails, where TPR is e·FPR, fails in at most 5 % of the repeats (false alarm below 1e-6).

    Its true rate is about 3 %; fewer than 1 % of 2,000 would then have probability 1e-9.
    """
    generator, repeats, failures = np.random.default_rng(12), 2000, 0
    for _ in range(repeats):
        low, high = np.sort(generator.laplace(size=300)), np.sort(generator.laplace(size=300) + 1.0)
        counts = _at_ranks(low, high, "present if above")[2].counts
        weights = _rank_weights(20, 300, 300)
        failures += _joint_limit(counts, 0.05, weights, lambda alarm, hit: np.log(hit / alarm), 64) > 1.0
    assert 0.01 * repeats < failures <= most_failures(repeats, 0.05)


def test_equal_scores_are_not_beyond_a_threshold():
    low, high = np.array([0.0, 0.0, 1.0, 1.0, 1.0]), np.array([0.0, 1.0, 2.0])
    for direction, threshold, beyond in (("present if above", 1.0, 1), ("present if below", 0.0, 0)):
        first, last = _at_ranks(low, high, direction)
        assert first == (direction, threshold, Counts(beyond, 3, 0, 5))  # rank 1
        assert last.counts.alarms == 4  # rank 5


@pytest.mark.parametrize("mu", [0.5, 3.0])
def test_gaussian_bound_rarely_exceeds_the_truth(mu):
    generator, repeats, confidence = np.random.default_rng(2), 800, 0.9
    epsilon = gaussian.epsilon(mu, 1e-5)
    bounds = np.array(
        [
            gaussian_bound(generator.normal(size=500), generator.normal(mu, size=700), 1e-5, confidence).lower_bound
            for _ in range(repeats)
        ]
    )
    exceeded = np.sum(bounds > epsilon)
    # False alarm below 1e-6: the guarantee is at most 10 % of the repeats.
    assert exceeded <= most_failures(repeats, 1 - confidence)
    # The bound is tight. (Its true rate is above 3 %; fewer than 1 in 800 would then have probability 1e-9.)
    assert exceeded > 1


@pytest.mark.parametrize("bound", BOUNDS)
def test_no_difference_is_no_finding(bound):
    generator, repeats = np.random.default_rng(3), 400
    found = [
        bound(generator.normal(size=600), generator.normal(size=600), 1e-5, 0.95).lower_bound > 0
        for _ in range(repeats)
    ]
    # False alarm below 1e-6: the guarantee is 0 in at least 95 % of the repeats.
    assert np.sum(found) <= most_failures(repeats, 0.05)


@pytest.mark.parametrize("bound", BOUNDS)
def test_high_confidence_holds(bound):
    generator = np.random.default_rng(4)
    epsilon = gaussian.epsilon(1.0, 1e-5)
    for _ in range(50):
        audit = bound(generator.normal(size=5000), generator.normal(1.0, size=5000), 1e-5, 1 - 1e-9)
        # False alarm below 50 · 1e-9.
        assert audit.lower_bound <= epsilon


# --- whole audits: power ------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "share"), [(1.0, 0.75), (4.0, 0.9)])
def test_gaussian_bound_has_power(epsilon, share):
    generator, mu = np.random.default_rng(5), gaussian.largest_mu(epsilon, 1e-5)
    bounds = [
        gaussian_bound(generator.normal(size=10_000), generator.normal(mu, size=10_000), 1e-5, 0.95).lower_bound
        for _ in range(40)
    ]
    # Means of 0.86 and 0.957 with standard deviations of 0.085 and 0.03 over audits (measured over 400):
    # the mean of 40 is more than 8 of its standard deviations above, so a false alarm is below 1e-6.
    assert np.mean(bounds) >= share * epsilon


def test_clopper_pearson_bound_has_power():
    generator = np.random.default_rng(6)
    # Half of the runs give log(0.73/0.27) a standard deviation of 0.0124, and limits 0.031 below it: 0.9 is 5.5
    # standard deviations below the expected bound.
    assert clopper_pearson_bound(*randomized_response(generator, 1.0, 40_000), 0.0, 0.95).lower_bound > 0.9


def test_fixed_ranks_show_more_than_a_split():
    """On scores without ties. The deviations of single bounds are 0.12 and 0.18, those of their means 0.05 together.

    The means are 1.29 and 1.09, so a false alarm is below 1e-6 even for other seeds than this one.
    """
    generator, mu = np.random.default_rng(10), gaussian.largest_mu(3.0, 1e-5)
    sets = [(generator.normal(size=5000), generator.normal(mu, size=5000)) for _ in range(60)]
    ranks, split = (np.mean([bound(*one, 1e-5, 0.95).lower_bound for one in sets]) for bound in (rank_bound, BOUNDS[0]))
    assert split < ranks < 3.0


@pytest.mark.parametrize("confidence", [0.95, 1 - 1e-9])
@pytest.mark.parametrize("runs", [2, 3, 1000])
def test_perfect_attack_gives_the_closed_form(runs, confidence):
    audit = clopper_pearson_bound(np.zeros(runs), np.ones(runs), 0.0, confidence)
    limit = ((1 - confidence) / 2) ** (1 / (runs // 2))
    assert audit.lower_bound == pytest.approx(max(0.0, math.log(limit / (1 - limit))), rel=1e-9)
    assert (audit.false_positive_rate, audit.true_positive_rate, audit.runs) == (0.0, 1.0, 2 * runs)
    if runs == 1000:
        assert audit.true_positive_limit == pytest.approx(limit)
        assert audit.false_positive_limit == pytest.approx(1 - limit)


# --- whole audits: form -------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    ("absent", "present", "direction"),
    [
        (np.zeros(2000), np.r_[np.zeros(1500), np.full(500, 3.0)], "present if above"),
        (np.zeros(2000), np.r_[np.zeros(1500), np.full(500, -3.0)], "present if below"),
        (np.r_[np.zeros(1500), np.full(500, 3.0)], np.zeros(2000), "absent if above"),
        (np.r_[np.zeros(1500), np.full(500, -3.0)], np.zeros(2000), "absent if below"),
    ],
)
def test_every_direction_is_found(bound, absent, present, direction):
    generator = np.random.default_rng(7)
    audit = bound(generator.permutation(absent), generator.permutation(present), 1e-5, 0.95)
    # A threshold between the atoms has two descriptions; the Gaussian shift is the same for both.
    guess, _, side = direction.split()
    other = {"present": "absent", "absent": "present"}[guess], {"above": "below", "below": "above"}[side]
    assert audit.direction in {direction, f"{other[0]} if {other[1]}"}
    assert audit.lower_bound > 0
    if bound is clopper_pearson_bound:
        assert audit.direction == direction
        assert audit.false_positive_rate == 0.0


@pytest.mark.parametrize("bound", [clopper_pearson_bound, gaussian_bound])
def test_swapping_the_data_changes_names_only(bound):
    generator = np.random.default_rng(8)
    absent, present = generator.normal(size=1000), generator.normal(1.5, size=1000)
    one, other = bound(absent, present, 1e-5, 0.9), bound(present, absent, 1e-5, 0.9)
    assert one.lower_bound == other.lower_bound > 0
    assert one.threshold == other.threshold


def test_at_fixed_ranks_swapping_the_data_changes_shares_of_the_error():
    """Nine tenths of it are for scores that are higher when the canary is present."""
    generator = np.random.default_rng(8)
    absent, present = generator.normal(size=1000), generator.normal(1.5, size=1000)
    one, mirrored, other = (
        rank_bound(*s, 1e-5, 0.9) for s in ((absent, present), (-present, -absent), (present, absent))
    )
    assert one.lower_bound == mirrored.lower_bound > other.lower_bound > 0
    assert one.threshold == -mirrored.threshold


def test_threshold_is_paid_for():
    """The runs that choose are not those that count: changing the latter does not move the threshold."""
    generator = np.random.default_rng(9)
    absent, present = generator.normal(size=1000), generator.normal(2.0, size=1000)
    one = clopper_pearson_bound(absent, present, 0.0, 0.9)
    absent[1::2] = present[1::2]
    other = clopper_pearson_bound(absent, present, 0.0, 0.9)
    assert (one.threshold, one.direction) == (other.threshold, other.direction)
    assert one.lower_bound > other.lower_bound == 0.0


@given(
    st.lists(st.integers(-3, 3), min_size=2, max_size=40),
    st.lists(st.integers(-3, 3), min_size=2, max_size=40),
    st.sampled_from([0.0, 1e-5, 0.3]),
    st.sampled_from([0.5, 0.95, 1 - 1e-9]),
    st.sampled_from(BOUNDS),
)
def test_any_scores_give_a_consistent_report(absent, present, delta, confidence, bound):
    audit = bound(absent, present, delta, confidence)
    assert audit.lower_bound >= 0
    assert audit.runs == len(absent) + len(present)
    assert audit.threshold in set(absent) | set(present)
    assert 0 <= audit.true_positive_limit <= audit.true_positive_rate <= 1
    assert 0 <= audit.false_positive_rate <= audit.false_positive_limit <= 1
    # The same threshold measures the same runs, so a higher confidence can only give a smaller bound.
    stricter = bound(absent, present, delta, 1 - (1 - confidence) / 2)
    if (stricter.threshold, stricter.direction) == (audit.threshold, audit.direction):
        assert stricter.lower_bound <= audit.lower_bound
    if bound is gaussian_bound:
        assert bound(absent, present, delta / 2 + 0.2, confidence).lower_bound <= max(
            audit.lower_bound, bound(absent, present, 0.2, confidence).lower_bound
        )


@pytest.mark.parametrize("bound", BOUNDS)
def test_equal_scores_show_nothing(bound):
    assert bound(np.ones(1000), np.ones(1000), 0.0, 0.5).lower_bound == 0.0


def test_pure_privacy_of_a_gaussian_is_infinite():
    generator = np.random.default_rng(10)
    assert gaussian_bound(generator.normal(size=999), generator.normal(2, size=999), 0.0, 0.9).lower_bound == math.inf


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_million_runs_are_no_obstacle(bound):
    generator = np.random.default_rng(11)
    audit = bound(generator.normal(size=10**6), generator.normal(1.0, size=10**6), 1e-5, 0.95)
    # The truth is 4.377. The Gaussian bound has a standard deviation of 0.011 around 4.36; the other one misses the
    # rare events that carry ε at this δ.
    assert (4.29 if bound is gaussian_bound else 2.3) < audit.lower_bound < 4.43


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"absent": [1.0]}, "absent must hold the scores of at least 2 runs, got 1"),
        ({"present": []}, "present must hold the scores of at least 2 runs, got 0"),
        ({"present": [[1.0, 2.0]]}, r"present must be .* got shape \(1, 2\)"),
        ({"absent": [1.0, math.nan]}, "absent must be finite"),
        ({"delta": 1.0}, "delta must be a number in"),
        ({"confidence": 1.0}, "confidence must be a number in"),
        ({"confidence": 0.0}, "confidence must be a number above 0"),
    ],
)
def test_bad_input_is_refused(bound, change, message):
    arguments = {"absent": [0.0, 1.0], "present": [0.0, 1.0], "delta": 0.0, "confidence": 0.9} | change
    with pytest.raises(ValueError, match=message):
        bound(**arguments)


# --- the curve ----------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(-3, 3), min_size=2, max_size=30),
    st.lists(st.integers(-3, 3), min_size=2, max_size=30),
)
def test_tradeoff_points_are_all_tests_of_few_runs(absent, present):
    false_positive, false_negative = tradeoff_points(absent, present)
    low, high = np.array(absent), np.array(present)
    expected = {(np.mean(low >= t), np.mean(high < t)) for t in [*absent, *present, 4]}
    points = set(zip(false_positive, false_negative, strict=True))
    assert {(round(x, 9), round(y, 9)) for x, y in points} == {(round(x, 9), round(y, 9)) for x, y in expected}


def test_tradeoff_points_follow_the_gaussian_curve():
    generator, runs = np.random.default_rng(12), 200_000
    false_positive, false_negative = tradeoff_points(generator.normal(size=runs), generator.normal(1.0, size=runs))
    assert 100 < false_positive.size <= 301
    assert (false_positive[0], false_negative[0]) == (0.0, 1.0)
    assert (false_positive[-1], false_negative[-1]) == (1.0, 0.0)
    assert (np.diff(false_positive) >= 0).all()
    assert (np.diff(false_negative) <= 0).all()
    inner = slice(1, -1)
    expected = stats.norm.cdf(stats.norm.isf(false_positive[inner]) - 1.0)
    # By Dvoretzky, Kiefer and Wolfowitz both rates are within 0.0062 with probability 1 − 4·exp(−15.4); the
    # curve's slope carries an error of FPR over, so compare along it, with room for slopes up to 10.
    steady = (false_positive[inner] > 0.01) & (false_positive[inner] < 0.99)
    np.testing.assert_allclose(false_negative[inner][steady], expected[steady], atol=0.07)
    assert np.count_nonzero(false_positive[inner] < 1e-3) > 20


# --- one run: the p-value -----------------------------------------------------------------------------


def published_p_value(canaries, guesses, correct, epsilon, delta):
    """Steinke, Nasr and Jagielski, arXiv:2305.08846v1, Corollary 5.4."""
    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = stats.binom.sf(correct - 1, guesses, accuracy)
    steps = np.arange(1, correct + 1)
    shares = np.cumsum(stats.binom.pmf(correct - steps, guesses, accuracy)) / steps
    return tail + 2 * canaries * delta * shares.max()


def best_attack(canaries, guesses, correct, epsilon, delta):
    """Return the largest probability of `correct` right guesses over all (ε, δ)-DP mechanisms, by a linear program."""
    inputs = list(itertools.product([0, 1], repeat=canaries))
    outputs = [t for t in itertools.product([0, 1, None], repeat=canaries) if canaries - t.count(None) == guesses]
    pairs = [(a, inputs.index((*s[:i], 1 - s[i], *s[i + 1 :]))) for a, s in enumerate(inputs) for i in range(canaries)]
    size, width = len(inputs) * len(outputs), len(outputs)
    # Unknowns: P(output | input), then the excess of each output for each pair of neighbours.
    upper = lil_array((len(pairs) * (width + 1), size + len(pairs) * width))
    limits = np.zeros(upper.shape[0])
    for e, (a, b) in enumerate(pairs):
        for t in range(width):
            row, excess = e * width + t, size + e * width + t
            upper[row, a * width + t], upper[row, b * width + t], upper[row, excess] = 1, -math.exp(epsilon), -1
            upper[len(pairs) * width + e, excess] = 1
        limits[len(pairs) * width + e] = delta
    total = lil_array((len(inputs), upper.shape[1]))
    for a in range(len(inputs)):
        total[a, a * width : (a + 1) * width] = 1
    right = [sum(x == y for x, y in zip(s, t, strict=True)) >= correct for s in inputs for t in outputs]
    goal = np.concatenate([np.array(right) / -len(inputs), np.zeros(len(pairs) * width)])
    return -linprog(goal, upper.tocsr(), limits, total.tocsr(), np.ones(len(inputs)), bounds=(0, None)).fun


@pytest.mark.parametrize(("canaries", "guesses"), [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3)])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 1.5])
@pytest.mark.parametrize("delta", [0.0, 0.003, 0.05])
def test_p_value_is_that_of_the_best_attack(canaries, guesses, epsilon, delta):
    for correct in range(guesses + 1):
        best = best_attack(canaries, guesses, correct, epsilon, delta)
        assert one_run_p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(best, abs=1e-8)


def test_p_value_for_more_canaries_is_that_of_the_best_attack():
    best = best_attack(4, 4, 3, 0.5, 0.01)
    assert one_run_p_value(4, 4, 3, 0.5, 0.01) == pytest.approx(best, abs=1e-8)


def test_published_p_value_fails_near_one():
    """Why the published term is not used: a mechanism that beats it, written out."""
    delta = 0.01
    avoid = 7 * delta  # probability of avoiding the answer that is all wrong; two inputs differ on 1/7 of such answers
    attained = (1 - avoid) * 7 / 8 + avoid
    assert attained > published_p_value(3, 3, 1, 0.0, delta)
    assert one_run_p_value(3, 3, 1, 0.0, delta) == pytest.approx(attained)


@given(st.integers(1, 300), st.floats(0, 6), st.data())
def test_p_value_is_below_the_published_one_where_it_matters(guesses, epsilon, data):
    correct = data.draw(st.integers(1, guesses))
    canaries = guesses + data.draw(st.integers(0, 1000))
    ours = one_run_p_value(canaries, guesses, correct, epsilon, 0.0)
    assert ours == pytest.approx(published_p_value(canaries, guesses, correct, epsilon, 0.0), rel=1e-8, abs=1e-300)
    if ours <= 0.5:
        published = published_p_value(canaries, guesses, correct, epsilon, 1e-4)
        assert ours <= one_run_p_value(canaries, guesses, correct, epsilon, 1e-4) <= published * (1 + 1e-9)


@pytest.mark.parametrize(("guesses", "correct"), [(1, 1), (40, 31), (200, 120), (200, 170), (200, 200), (900, 899)])
def test_p_value_is_exact(guesses, correct):
    """ε = log 3 is an accuracy of 3/4, in whole numbers."""
    chances = [math.comb(guesses, k) * Fraction(3) ** k / Fraction(4) ** guesses for k in range(guesses + 1)]
    tail = sum(chances[correct:])
    delta = Fraction(1, 10**6)
    expected = tail + 1000 * delta * tail * (1 - tail) / (correct * chances[correct])
    found = one_run_p_value(1000, guesses, correct, math.log(3), 1e-6)
    assert found == pytest.approx(float(min(expected, Fraction(1))), rel=1e-9)


def test_p_value_survives_underflow():
    # P[W ≥ v] = 2^−20000; the rest is mδ/v, the probability of a mechanism that reveals everything with probability δ.
    assert one_run_p_value(20_000, 20_000, 20_000, 0.0, 1e-6) == pytest.approx(1e-6)
    # A few wrong guesses make the tail a geometric series: within a part in a thousand of its first term.
    assert one_run_p_value(20_000, 20_000, 19_990, 0.0, 1e-6) == pytest.approx(20_000 / 19_990 * 1e-6, rel=1e-3)
    assert one_run_p_value(20_000, 20_000, 1, 5.0, 1e-6) == 1.0


@given(st.integers(1, 2000), st.floats(0, 8), st.sampled_from([0.0, 1e-8, 1e-4]), st.data())
def test_p_value_is_monotone(guesses, epsilon, delta, data):
    correct = data.draw(st.integers(1, guesses))
    value = one_run_p_value(guesses, guesses, correct, epsilon, delta)
    slack = value * (1 + 1e-8)
    assert 0 <= value <= 1
    assert one_run_p_value(guesses, guesses, correct - 1, epsilon, delta) * (1 + 1e-8) >= value
    assert one_run_p_value(guesses, guesses, correct, epsilon + 0.1, delta) * (1 + 1e-8) >= value
    assert one_run_p_value(guesses + 100, guesses, correct, epsilon, delta) >= value
    assert one_run_p_value(guesses, guesses, correct, epsilon, delta / 2) <= slack


# --- one run: the bound -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "delta", "published"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_bound_is_above_the_published_one(canaries, guesses, correct, delta, published):
    """The two numbers printed in the paper (appendix D and section 7), from its formula and from ours."""
    # The published formula gives them: its p-value crosses 5 % there.
    assert published_p_value(canaries, guesses, correct, published - 2e-3, delta) < 0.05
    assert published_p_value(canaries, guesses, correct, published + 2e-3, delta) > 0.05
    included = np.arange(canaries) % 2 == 1
    scores = np.zeros(canaries)
    half, wrong = guesses // 2, guesses - correct
    tops, bottoms = np.flatnonzero(included), np.flatnonzero(~included)
    scores[tops[: guesses - half]], scores[bottoms[:half]] = 1.0, -1.0
    scores[tops[:wrong]], scores[bottoms[half : half + wrong]] = 0.0, 1.0
    audit = one_run_bound(scores, included, delta, 0.95, guesses=guesses)
    assert (audit.guesses, audit.correct, audit.canaries) == (guesses, correct, canaries)
    assert published < audit.lower_bound < 1.1 * published
    assert one_run_p_value(canaries, guesses, correct, audit.lower_bound, delta) == pytest.approx(0.05)


@pytest.mark.parametrize("confidence", [0.95, 1 - 1e-9])
@pytest.mark.parametrize("canaries", [1, 2, 5, 1000])
def test_all_right_gives_the_closed_form(canaries, confidence):
    included = np.arange(canaries) < (canaries + 1) // 2
    audit = one_run_bound(included, included, 0.0, confidence, guesses=canaries)
    accuracy = (1 - confidence) ** (1 / canaries)
    assert audit.correct == canaries
    assert audit.lower_bound == pytest.approx(max(0.0, math.log(accuracy / (1 - accuracy))), abs=1e-9)


def released_bits(generator, epsilon, canaries):
    """Each coin through randomised response: exactly ε-DP, and the worst case of the theorem."""
    included = generator.random(canaries) < 0.5
    return np.where(generator.random(canaries) < 1 / (1 + math.exp(-epsilon)), included, ~included), included


@pytest.mark.parametrize("guesses", [None, 200])
def test_one_run_bound_rarely_exceeds_the_truth(guesses):
    generator, repeats, confidence = np.random.default_rng(13), 1000, 0.8
    bounds = np.array(
        [
            one_run_bound(*released_bits(generator, 1.0, 200), 0.0, confidence, guesses).lower_bound
            for _ in range(repeats)
        ]
    )
    # False alarm below 1e-6: the guarantee is at most 20 % of the repeats.
    assert np.sum(bounds > 1.0) <= most_failures(repeats, 1 - confidence)
    assert np.mean(bounds) > 0.4


def test_one_run_bound_holds_when_delta_is_all_there_is():
    """Everything is revealed with probability δ, otherwise nothing: (0, δ)-DP."""
    generator, repeats, confidence, delta = np.random.default_rng(14), 2000, 0.95, 0.08
    found = 0
    for _ in range(repeats):
        included = generator.random(50) < 0.5
        scores = included if generator.random() < delta else generator.random(50)
        found += one_run_bound(scores, included, delta, confidence, guesses=50).lower_bound > 0
    # False alarm below 1e-6: the guarantee is at most 5 % of the repeats. Without the term in δ it would be 8 % alone
    # in which everything is revealed.
    assert found <= most_failures(repeats, 1 - confidence)


def test_one_run_bound_has_power():
    generator = np.random.default_rng(15)
    # 20,000 guesses give ε a standard deviation of 0.016 and a limit 1.65 of these below it (2.4 if six sizes
    # are accounted for): 0.85 is 6 below the expected bound.
    assert one_run_bound(*released_bits(generator, 1.0, 20_000), 1e-9, 0.95, guesses=20_000).lower_bound > 0.85
    assert one_run_bound(*released_bits(generator, 1.0, 20_000), 1e-9, 0.95).lower_bound > 0.85


def test_choosing_the_number_of_guesses_helps_where_few_scores_tell():
    generator = np.random.default_rng(16)
    included = generator.random(4096) < 0.5
    included[:128] = np.arange(128) % 2 == 0
    scores = generator.normal(size=4096)
    scores[:128] += 20.0 * (2.0 * included[:128] - 1.0)  # only these are revealed
    audit = one_run_bound(scores, included, 0.0, 0.95)
    assert audit.guesses == audit.correct == 128
    assert audit.lower_bound > one_run_bound(scores, included, 0.0, 0.95, guesses=4096).lower_bound


def test_equal_scores_do_not_read_the_order_of_the_canaries():
    """Canaries are often listed by inclusion; an order of ties that knows the list would guess more than chance."""
    exceeded = []
    rng = np.random.default_rng(0)
    for number in range(150, 1200, 3):
        for guesses in (number, None):
            included = np.sort(rng.random(number) < 0.5)
            bound = one_run_bound(np.zeros(number), included, 0.0, 0.95, guesses, seed=number)
            exceeded.append(bound.lower_bound > 0)
    # Each is above 0 with probability at most 0.05; false alarm below 1e-6.
    assert sum(exceeded) <= stats.binom.isf(1e-6, len(exceeded), 0.05)


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=1, max_size=60), st.sampled_from([0.0, 1e-3]))
def test_one_run_bound_is_monotone(canaries, delta):
    scores, included = np.array(canaries).T
    audit = one_run_bound(scores, included, delta, 0.9, seed=0)
    assert 0 <= audit.correct <= audit.guesses <= audit.canaries == len(canaries)
    assert one_run_bound(scores, included, delta, 0.99, seed=0).lower_bound <= audit.lower_bound
    assert one_run_bound(scores, included, delta + 1e-3, 0.9, seed=0).lower_bound <= audit.lower_bound


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": []}, "the number of scores must be a whole number of at least 1"),
        ({"scores": [1.0, math.inf]}, "scores must be finite"),
        ({"included": [0, 2]}, "included must hold"),
        ({"included": [0]}, "included must hold one label for each of 2"),
        ({"delta": -0.1}, "delta must be"),
        ({"confidence": 1.0}, "confidence must be"),
        ({"guesses": 3}, "guesses must be at most the number of canaries, 2, got 3"),
        ({"guesses": 0}, "guesses must be a whole number of at least 1"),
    ],
)
def test_bad_one_run_input_is_refused(change, message):
    arguments = {"scores": [0.0, 1.0], "included": [0, 1], "delta": 0.0, "confidence": 0.9} | change
    with pytest.raises(ValueError, match=message):
        one_run_bound(**arguments)


def test_impossible_counts_are_refused():
    with pytest.raises(ValueError, match="correct ≤ guesses ≤ canaries must hold, got 3, 2, 5"):
        one_run_p_value(5, 2, 3, 1.0, 0.0)
