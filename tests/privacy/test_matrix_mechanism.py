"""Correlated noise by brute force: every pattern of participation in short runs, and faults that others have shipped.

One coordinate suffices: directions of several move no more (tests/rules/test_correlation.py). The law of the release
x = v + C⁻¹w is computed from the inverse matrix, so that nothing rests on the identity C·x = C·v + w.
"""

import itertools

import numpy as np
import pytest
from scipy.special import ndtr

import clipsilon as cs
from clipsilon.privacy.accounting import gaussian
from clipsilon.rules.correlation import coefficients, shift_norm, square_root
from clipsilon.rules.rule import Rule

STEP = cs.schedules.Constant(0.1)
PAIRS = np.array([[0.3, 0.2], [0.9, 0.25], [0.99, 0.1]])
ONE = np.array([[0.8, 0.6]])
NEARLY_NONE = np.array([[0.5, 1e-9]])  # C is the identity, up to 10⁻⁹
NEARLY_ALL = np.array([[1 - 1e-9, 1 - 1e-9]])  # C is the matrix of prefix sums
BUFFERS = {"pairs": PAIRS, "one": ONE, "identity": NEARLY_NONE, "sums": NEARLY_ALL, "root": square_root(6)}


def toeplitz(c):
    return np.array([[c[i - j] if i >= j else 0.0 for j in range(len(c))] for i in range(len(c))])


def patterns(steps, apart):
    """All sets of steps that are at least `apart` steps apart."""
    for size in range(1, steps + 1):
        for places in itertools.combinations(range(steps), size):
            if all(later - sooner >= apart for sooner, later in itertools.pairwise(places)):
                yield places


def delta(shift, covariance, epsilon):
    """The hockey-stick divergence of N(shift, Σ) and N(0, Σ), exactly (Balle and Wang, 2018)."""
    mu = float(np.sqrt(shift @ np.linalg.solve(covariance, shift)))
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def largest_delta(c, std, steps, apart, change, epsilon):
    """The largest δ over all patterns and signs, for contributions of size `change`."""
    inverse = np.linalg.inv(toeplitz(c))
    covariance, found = std**2 * inverse @ inverse.T, 0.0
    for places in patterns(steps, apart):
        for signs in itertools.product((-1.0, 1.0), repeat=len(places)):
            shift = np.zeros(steps)
            shift[list(places)] = change * np.array(signs)
            found = max(found, delta(shift, covariance, epsilon))
    return found


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize(
    ("sampling", "records", "batch", "steps"),
    [
        ("single-pass", 6, 1, 6),
        ("single-pass", 6, 1, 4),
        ("cyclic", 6, 2, 6),  # twice, three steps apart
        ("cyclic", 4, 2, 5),  # three times
        ("cyclic", 3, 2, 6),  # passes end in a smaller batch
        ("full", 3, 1, 1),
        ("full", 3, 1, 5),
    ],
)
def test_no_pattern_has_a_larger_delta_and_one_attains_it(sampling, records, batch, steps, name, adjacency):
    rule = cs.CorrelatedSGD(STEP, 0.7, 0.5, batch=batch, sampling=sampling, buffers=BUFFERS[name])
    stated = cs.account(rule, records, steps, 1e-5, adjacency)
    size, apart = (records, 1) if sampling == "full" else (batch, -(-records // batch))
    change = (2.0 if adjacency == "replace-one" else 1.0) * 0.7 / size
    c = coefficients(BUFFERS[name], steps)
    for epsilon in (0.1, 1.0, 3.0):
        true = largest_delta(c, 0.5, steps, apart, change, epsilon)
        assert true * (1 - 1e-9) <= stated.delta_at(epsilon) <= true * (1 + 1e-6) + 1e-15


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_records_that_adapt_to_the_first_output_gain_nothing(adjacency):
    """By integration over two outputs: after each first one, the record chooses the worst of nine contributions."""
    std, c, epsilon = 0.9, coefficients(ONE, 2)[1], 0.7
    axis = np.linspace(-9, 9, 721)
    width = axis[1] - axis[0]

    def density(mean):
        return np.exp(-0.5 * ((axis - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))

    limit = 2.0 if adjacency == "replace-one" else 1.0
    found = []
    for first in np.linspace(-limit, limit, 5):
        total = 0.0
        one, none = density(first), density(0.0)  # of the first output
        for k, output in enumerate(axis):
            base = none[k] * density(-c * output)  # the second output takes back a part of the noise of the first
            excess = [
                np.maximum(one[k] * density(second - c * (output - first)) - np.exp(epsilon) * base, 0).sum()
                for second in np.linspace(-limit, limit, 9)
            ]
            total += max(excess)
        found.append(total * width**2)
    rule = cs.CorrelatedSGD(STEP, 1.0, std, sampling="full", buffers=ONE)
    most = cs.account(rule, 1, 2, 1e-5, adjacency).delta_at(epsilon)
    assert max(found) <= most * 1.001
    assert max(found) >= most * 0.999
    assert min(found) < 0.9 * most  # choices matter


# -- faults that others have shipped ----------------------------------------------------------------------------------


def test_coefficients_that_grow_would_be_certified_too_low_and_are_refused():
    """With c_2 > c_1 the closest steps are not the worst: the formula is short of another pattern."""
    grows = np.array([[0.95, 2.0], [0.6, -1.95]])
    c = toeplitz(coefficients(grows, 3))
    assert c[1, 0] < c[2, 0]
    assert np.linalg.norm(c[:, [0, 2]].sum(axis=1)) > 1.2 * shift_norm(grows, 3, 2, 1)
    for pairs in (grows, [[0.95, 0.9], [0.6, -0.85]], [[0.5, 0.6], [0.9, 0.5]]):
        with pytest.raises(ValueError, match="buffers must be pairs of a decay and a weight between 0 and 1"):
            cs.noise.Correlated(1.0, pairs)


@pytest.mark.parametrize("name", BUFFERS)
def test_coefficients_that_are_accepted_never_grow(name):
    c = coefficients(cs.noise.Correlated(1.0, BUFFERS[name]).buffers, 2000)
    assert c[0] == 1
    assert (c >= 0).all()
    assert (np.diff(c) <= 1e-15).all()


def test_the_length_of_c_is_that_of_the_run_and_not_of_its_bands():
    """A coefficient that is cut off early, or K participations priced as one, would certify less than is true."""
    rule = cs.CorrelatedSGD(STEP, 1.0, 1.0, batch=1, sampling="cyclic", buffers=NEARLY_ALL)
    mu = cs.account(rule, 2, 6, 1e-5, "zero-out").certificate.profile.mu
    assert mu == pytest.approx(np.linalg.norm([1, 1, 2, 2, 3, 3]), rel=1e-6)
    alone = cs.CorrelatedSGD(STEP, 1.0, 1.0, sampling="full", buffers=NEARLY_NONE)
    mu = cs.account(alone, 1, 9, 1e-5, "zero-out").certificate.profile.mu
    assert mu == pytest.approx(3.0, rel=1e-6)  # independent noise: √K, not 1
    plain = cs.DPSGD(STEP, 1.0, 1.0, batch=1, sampling="full")
    assert cs.account(plain, 1, 9, 1e-5, "zero-out").certificate.profile.mu == pytest.approx(mu, rel=1e-6)


def test_a_stop_that_depends_on_outputs_gives_nothing_back():
    """The second output is released only if the first was large: the price of one step alone is exceeded."""
    std, c, epsilon = 1.0, coefficients(NEARLY_ALL, 2)[1], 0.5
    first = np.linspace(-10, 12, 4001)
    width = first[1] - first[0]

    def density(mean):
        return np.exp(-0.5 * ((first - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))

    def tail(output):
        """The excess of the second output, in closed form: N(−c·(output − 1)) against N(−c·output), both of deviation s."""
        ratio = np.log(density(1.0)[output] / density(0.0)[output])
        rest = epsilon - ratio
        return ndtr(c / 2 - rest / c) - np.exp(rest) * ndtr(-c / 2 - rest / c)

    excess = np.maximum(density(1.0) - np.exp(epsilon) * density(0.0), 0)
    going_on = np.array([density(1.0)[k] * tail(k) for k in range(first.size)])
    stopped = [float(np.where(first > threshold, going_on, excess).sum() * width) for threshold in (-1.0, 0.0, 0.5)]
    rule = cs.CorrelatedSGD(STEP, 1.0, std, batch=1, buffers=NEARLY_ALL)
    one, two = (cs.account(rule, 2, steps, 1e-5, "zero-out") for steps in (1, 2))
    assert excess.sum() * width == pytest.approx(one.delta_at(epsilon), rel=1e-3)
    assert min(stopped) > 1.05 * one.delta_at(epsilon)  # though most of these runs may have stopped
    assert max(stopped) <= two.delta_at(epsilon)
    assert any("fixed beforehand" in reason for reason in two.reasons)


@pytest.mark.parametrize("clips", [(1.0, 0.1), (0.1, 1.0)])
def test_a_clip_that_changes_is_covered_only_by_noise_in_proportion_after_correlation(clips):
    """D·C⁻¹·w covers D·u as C⁻¹·w covers u; C⁻¹·D·w, or noise for the mean clip, does not. Nothing of it is certified."""
    d, c = np.diag(clips), toeplitz(coefficients(ONE, 2))
    inverse = np.linalg.inv(c)
    constant = largest_delta(coefficients(ONE, 2), 1.0, 2, 1, 1.0, 0.5)

    def worst(factor):
        """The largest δ if the noise is factor·w and contributions are bounded by the clips."""
        shifts = [d @ np.array(signs) for signs in itertools.product((-1.0, 0.0, 1.0), repeat=2) if any(signs)]
        return max(delta(shift, factor @ factor.T, 0.5) for shift in shifts)

    assert worst(d @ inverse) == pytest.approx(constant, rel=1e-9)
    if clips[0] > clips[1]:
        assert worst(inverse @ d) > 1.5 * constant
    assert worst(np.mean(clips) * inverse) > 1.001 * constant
    clip = cs.clipping.Scheduled(cs.schedules.Piecewise([1, 2], clips))
    for noise in (cs.noise.Correlated(1.0, ONE), cs.noise.Correlated(100.0, ONE)):
        rule = Rule("own", STEP, clip, cs.sampling.SinglePass(1), noise)
        assert cs.account(rule, 5, 2, 1e-5, "zero-out").certified == np.inf


def test_what_feedback_leaves_behind_is_not_priced_as_one_participation():
    """A capped error of DiceSGD shows a step later: C·Δ is then longer than ‖c‖, and nothing is certified."""
    c = toeplitz(coefficients(ONE, 3))
    shown = np.array([1.0, 0.9, 0.0])  # 1 in the step itself, what the clip removed in the next
    assert np.linalg.norm(c @ shown) > 1.3 * shift_norm(ONE, 3)
    feedback = cs.feedback.ErrorFeedback(cs.clipping.Norm(1.0), cs.clipping.Norm(1.9))
    for sampling in (cs.sampling.SinglePass(1), cs.sampling.Cyclic(1), cs.sampling.Full()):
        rule = Rule("own", STEP, cs.clipping.Norm(1.0), sampling, cs.noise.Correlated(5.0, ONE), feedback)
        for adjacency in ("zero-out", "replace-one"):
            stated = cs.account(rule, 5, 3, 1e-5, adjacency)
            assert stated.certified == np.inf
            assert "correlated noise is for a constant clip without feedback" in stated.reasons[0]


@pytest.mark.parametrize("sampling", [cs.sampling.Poisson(2), cs.sampling.Poisson(2, 0.3), cs.sampling.Uniform(2)])
def test_whole_data_sampling_is_not_certified_as_if_participations_were_apart(sampling):
    """Drawn twice in a row, a record moves C·v by more than one participation does, and no bands keep it from that."""
    c = toeplitz(coefficients(ONE, 6))
    twice = np.linalg.norm(c[:, [0, 1]].sum(axis=1))
    assert twice > 1.1 * shift_norm(ONE, 6, 2, 3) > 1.1 * shift_norm(ONE, 6)
    rule = Rule("own", STEP, cs.clipping.Norm(1.0), sampling, cs.noise.Correlated(5.0, ONE))
    stated = cs.account(rule, 6, 6, 1e-5, "zero-out")
    assert stated.certified == np.inf
    assert "of which the next participation of a record is known" in stated.reasons[0]


def test_gaussian_and_exact_formula_agree():
    """`delta` above is the formula of this file's own; the package's is checked elsewhere, too."""
    for mu, epsilon in ((0.5, 0.1), (2.0, 1.0)):
        assert delta(np.array([mu]), np.eye(1), epsilon) == pytest.approx(gaussian.delta(mu, epsilon), rel=1e-12)
