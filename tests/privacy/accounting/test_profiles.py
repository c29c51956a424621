"""Profiles against integrals, other software, published figures, and each other."""

import math
import pickle

import mpmath
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from clipsilon.privacy.accounting import composition, gaussian, profiles
from clipsilon.privacy.accounting import privacy_loss as losses
from clipsilon.privacy.accounting.sampled import likely, participations, sampled_delta, sampled_epsilon

SAMPLED = [profiles.poisson, profiles.subset]
ALL_SAMPLED = [*SAMPLED, profiles.subset_zero_out]


def hockey_sticks(q, mu, epsilon):
    """Return H_{e^ε}(mix‖base) and H_{e^ε}(base‖mix), by brute force over outputs."""
    x = np.linspace(-12, 12 + mu, 400_001)
    base = norm.pdf(x)
    mix = (1 - q) * base + q * norm.pdf(x - mu)
    ratio = math.exp(epsilon)
    return tuple(np.trapezoid(np.maximum(0, p - ratio * r), x) for p, r in ((mix, base), (base, mix)))


def grid_delta(step, epsilon):
    """Return δ(ε) of a grid of losses, by its definition."""
    values = (step.first + np.arange(step.masses.size)) * step.interval
    above = values > epsilon
    return step.infinite + np.sum(step.masses[above] * -np.expm1(epsilon - values[above]))


# One step.


@pytest.mark.parametrize("constructor", SAMPLED)
@pytest.mark.parametrize(("q", "z"), [(0.3, 0.5), (0.01, 1.0), (0.9, 3.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.2, 1.0])
def test_one_step_is_the_worse_integral(constructor, q, z, epsilon):
    exact = max(hockey_sticks(q, 1 / z, epsilon))
    result = constructor(q, z, 1).delta(epsilon)
    assert exact - 1e-9 <= result <= 1.02 * exact + 1e-6
    if exact > 1e-6:
        certified = constructor(q, z, 1).epsilon(exact)
        assert epsilon - 1e-4 * epsilon - 1e-9 <= certified <= 1.01 * epsilon + 1e-5


@pytest.mark.parametrize(("q", "mu"), [(0.3, 2.0), (0.01, 1.0), (0.999, 0.3), (1e-4, 4.0)])
def test_grids_dominate_and_agree_at_their_points(q, mu):
    interval = losses.reach(q, mu, 1e-12) / 200
    for place in (-9, -1, 0, 1, 9):
        removed, added = hockey_sticks(q, mu, place * interval)
        for one_step, exact in (
            (losses.removal, removed),
            (losses.addition, added),
            (losses.symmetrised, max(removed, added)),
        ):
            step = one_step(q, mu, interval, 1e-12)
            assert grid_delta(step, place * interval) == pytest.approx(exact, abs=1e-9)
            assert step.masses.sum() + step.infinite == pytest.approx(1, abs=1e-12)
            assert np.all(step.masses >= 0)
    removed, added = hockey_sticks(q, mu, 0.5 * interval)
    assert grid_delta(losses.removal(q, mu, interval, 1e-12), 0.5 * interval) >= removed - 1e-9
    assert grid_delta(losses.addition(q, mu, interval, 1e-12), 0.5 * interval) >= added - 1e-9


def test_the_symmetrised_grid_is_symmetric():
    # H_α(P‖Q) = 1 − α + α·H_{1/α}(Q‖P), and neither direction is P's.
    step = losses.symmetrised(0.2, 1.5, 0.05, 1e-12)
    for epsilon in (0.05, 0.5, 2.0):
        mirrored = -math.expm1(-epsilon) + math.exp(-epsilon) * grid_delta(step, epsilon)
        assert grid_delta(step, -epsilon) == pytest.approx(mirrored, abs=1e-11)


@pytest.mark.parametrize("one_step", [losses.removal, losses.addition, losses.symmetrised])
def test_no_probability_is_lost_where_the_grid_is_cut(one_step):
    step = one_step(0.3, 2.0, 0.01, 1e-2)
    assert 0 <= step.infinite <= 1e-2
    assert step.masses.sum() + step.infinite == pytest.approx(1, abs=1e-12)


def test_losses_beyond_what_exponentials_can_hold():
    step = losses.removal(0.5, 100.0, 1.0, 1e-12)
    values = (step.first + np.arange(step.masses.size)) * step.interval
    taking_part = values > 100
    assert step.masses[taking_part].sum() == pytest.approx(0.5, abs=1e-9)
    # In that half the loss is N(μ²/2, μ²) + log q; the grid adds a twelfth of its interval squared.
    mean = np.sum(step.masses[taking_part] * values[taking_part]) / 0.5
    assert mean == pytest.approx(5000 + math.log(0.5) + 1 / 12, abs=0.01)


# Composition.


def test_composition_is_convolution():
    step = losses.removal(0.3, 1.0, 0.05, 1e-14)
    masses, total = np.ones(1), 5
    for _ in range(total):
        masses = np.convolve(masses, step.masses)
    infinite = 1 - (1 - step.infinite) ** total
    summed = losses.Losses(step.interval, step.first * total, masses, infinite)
    for epsilon in (0.0, 0.512, 2.0, 6.0, 9.0):
        expected = grid_delta(summed, epsilon)
        assert composition.total_delta([(step, total)], epsilon) == pytest.approx(expected, rel=1e-8)
        assert composition.total_epsilon([(step, total)], expected) == pytest.approx(epsilon, abs=1e-6)


def test_composition_keeps_its_digits_where_fourier_transforms_have_none():
    # Ten coins with losses ±1, exactly: δ(ε) down to p^10 = 1e-50.
    p = 1e-5
    step = losses.Losses(1.0, -1, np.array([1 - p, 0.0, p]), 0.0)
    for epsilon in (0.5, 5.0, 9.5):
        heads = np.arange(11)
        gain = 2.0 * heads - 10
        chances = binom.pmf(heads, 10, p)
        expected = np.sum(np.where(gain > epsilon, chances * -np.expm1(epsilon - gain), 0.0))
        assert composition.total_delta([(step, 10)], epsilon) == pytest.approx(expected, rel=1e-6)


def test_composition_looks_where_the_sum_is():
    # A mean between two points of the grid: after many steps, far from both.
    p, steps = 0.5, 10**4
    step = losses.Losses(0.01, 0, np.array([1 - p, p]), 0.0)
    heads = np.arange(steps + 1)
    for epsilon in (49.0, 51.0, 53.0):
        gain = 0.01 * heads
        terms = binom.pmf(heads, steps, p) * -np.expm1(np.minimum(0.0, epsilon - gain))
        assert composition.total_delta([(step, steps)], epsilon) == pytest.approx(terms.sum(), rel=1e-7)


def test_an_infinite_loss_counts_every_time():
    step = losses.Losses(1.0, 0, np.array([0.9]), 0.1)
    assert composition.total_delta([(step, 3)], 1.0) == pytest.approx(1 - 0.9**3, rel=1e-12)
    assert composition.total_epsilon([(step, 3)], 0.2) == math.inf
    assert composition.total_epsilon([(step, 3)], 0.3) == 0.0


# Poisson sampling.


@pytest.mark.parametrize(
    ("q", "z", "steps", "delta", "interval"),
    [
        (0.01, 1.0, 1000, 1e-5, 2e-4),
        (0.2, 2.0, 50, 1e-8, 2e-4),
        (0.001, 0.4, 300, 1e-6, 1e-3),
        (0.5, 5.0, 3, 0.01, 1e-4),
    ],
)
def test_poisson_agrees_with_dp_accounting(q, z, steps, delta, interval):
    def reference(pessimistic):
        one = pld.privacy_loss_distribution.from_gaussian_mechanism(
            z,
            value_discretization_interval=interval,
            sampling_prob=q,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        )
        return one.self_compose(steps).get_epsilon_for_delta(delta)

    result = profiles.poisson(q, z, steps).epsilon(delta)
    assert reference(False) <= result <= 1.01 * reference(True)


@pytest.mark.parametrize("one_steps", [(losses.removal, losses.addition), (losses.addition, losses.removal)])
def test_the_worse_direction_counts_whichever_comes_first(one_steps):
    q, mu, steps = 0.1, 1.5, 8
    fine = losses.reach(q, mu, 1e-12) / 4000
    removed, added = (one_step(q, mu, fine, 1e-12) for one_step in (losses.removal, losses.addition))
    epsilons = [composition.total_epsilon([(step, steps)], 1e-4) for step in (removed, added)]
    deltas = [composition.total_delta([(step, steps)], 0.5) for step in (removed, added)]
    assert epsilons[0] > 1.1 * epsilons[1]
    assert max(epsilons) * (1 - 1e-6) <= sampled_epsilon(one_steps, q, [(mu, steps)], 1e-4) <= 1.01 * max(epsilons)
    assert max(deltas) * (1 - 1e-6) <= sampled_delta(one_steps, q, [(mu, steps)], 0.5) <= 1.02 * max(deltas)


def test_poisson_figures_of_the_papers():
    steps = size = 10**5
    noise = math.sqrt(steps * math.log(size)) / (size * 0.1)  # paper 1, a claimed ε of 0.1
    assert profiles.poisson(1 / size, noise, steps).epsilon(1 / size) == pytest.approx(259, rel=0.01)
    assert profiles.subset(1 / size, noise / 2, steps).epsilon(1 / size) == pytest.approx(1241, rel=0.01)
    assert profiles.poisson(250 / 59535, 0.63, 2381).epsilon(1e-5) == pytest.approx(4.14, abs=0.01)  # paper 5


# Uniform subsets.


@pytest.mark.parametrize(
    ("q", "steps", "attained", "right"),
    [(0.1, 10, 2.869, 2.925), (0.01, 1000, 1.836, 2.199), (0.001, 10**4, 0.0, 0.612)],
)
def test_subset_figures(q, steps, attained, right):
    result = profiles.subset(q, 1.0, steps).epsilon(1e-5)
    assert attained <= right <= result <= 1.01 * right


def test_subset_covers_directions_that_alternate():
    # Two records, two steps: an attack attains this, and composing each direction separately misses it.
    both_steps = profiles.subset(0.5, 0.5, 2).delta(1.0)
    shortcut = profiles.poisson(0.5, 0.5, 2).delta(1.0)
    assert shortcut == pytest.approx(0.35066, rel=0.01)
    assert 0.36600 <= both_steps <= 0.4


# What holds for both ways to sample.


@pytest.mark.parametrize("constructor", ALL_SAMPLED)
def test_nothing_and_everything_sampled(constructor):
    assert constructor(0.1, 1.0, 0).epsilon(1e-9) == 0.0
    assert constructor(0.0, 1.0, 10).epsilon(1e-9) == 0.0
    assert constructor(1.0, 2.0, 16).epsilon(1e-5) == gaussian.epsilon(2.0, 1e-5)
    almost = constructor(1 - 1e-9, 2.0, 16).epsilon(1e-5)
    assert gaussian.epsilon(2.0, 1e-5) <= almost * (1 + 1e-6)
    assert almost <= 1.01 * gaussian.epsilon(2.0, 1e-5)


@pytest.mark.parametrize("constructor", SAMPLED)
@settings(max_examples=15, deadline=None)
@given(
    q=st.floats(-4, -0.1).map(lambda x: 10**x),
    z=st.floats(-0.5, 1.5).map(lambda x: 10**x),
    steps=st.integers(1, 3000),
    log_delta=st.floats(-20, -1),
)
def test_monotone_and_dominated(constructor, q, z, steps, log_delta):
    delta = math.exp(log_delta)
    here = constructor(q, z, steps).epsilon(delta)
    least = 0.99 * here - 2e-5  # the promised accuracy
    assert constructor(min(1.0, 1.3 * q), z, steps).epsilon(delta) >= least
    assert constructor(q, z / 1.3, steps).epsilon(delta) >= least
    assert constructor(q, z, 2 * steps).epsilon(delta) >= least
    assert constructor(q, z, steps).epsilon(delta / 3) >= least
    assert here <= gaussian.epsilon(math.sqrt(steps) / z, delta) * (1 + 1e-9)
    assert profiles.subset(q, z, steps).epsilon(delta) >= 0.99 * profiles.poisson(q, z, steps).epsilon(delta) - 2e-5


@pytest.mark.parametrize("constructor", ALL_SAMPLED)
@pytest.mark.parametrize(("q", "z", "steps"), [(0.01, 1.0, 1000), (0.3, 3.0, 20), (1e-3, 0.3, 100)])
def test_delta_and_epsilon_are_inverse(constructor, q, z, steps):
    profile = constructor(q, z, steps)
    for delta in (0.01, 1e-5, 1e-18, 1e-60):
        epsilon = profile.epsilon(delta)
        assert profile.delta(1.01 * epsilon + 1e-5) <= delta
        assert profile.delta(0.98 * epsilon) >= delta or epsilon == 0


@pytest.mark.parametrize("constructor", SAMPLED)
def test_extremes(constructor):
    assert 1e-3 < constructor(0.001, 50.0, 1000).epsilon(1e-5) < 1.2e-3
    assert 1e4 < constructor(0.5, 0.05, 100).epsilon(1e-5) < gaussian.epsilon(200.0, 1e-5)
    # A shift so large that participation is visible: k of 1000 steps, k ~ Bin(1000, 0.01).
    often = binom.isf(1e-5, 1000, 0.01)
    assert constructor(0.01, 1e-8, 1000).epsilon(1e-5) == pytest.approx(often * 1e16 / 2, rel=0.05)
    assert constructor(0.01, 1e-200, 1000).epsilon(1e-5) == math.inf
    assert constructor(0.01, 1e9, 1000).epsilon(1e-5) == 0.0
    assert constructor(0.01, 1e9, 1000).epsilon(1e-15) < 1e-5
    assert constructor(1e-6, 1.0, 10**6).epsilon(0.9) == 0.0
    assert constructor(0.01, 1.0, 1000).epsilon(1e-290) < 100
    assert constructor(1e-12, 1e-3, 10).delta(1.0) == pytest.approx(
        1e-11, rel=0.01
    )  # δ is the probability of taking part at all
    assert constructor(1e-12, 1e-3, 10).epsilon(1.1e-11) < 1e-5


def test_many_weak_steps_are_nearly_gaussian():
    # 10⁶ steps of shift 0.01·q: by the central limit theorem μ = q·√T/z.
    assert profiles.poisson(0.1, 100.0, 10**6).epsilon(1e-5) == pytest.approx(gaussian.epsilon(1.0, 1e-5), rel=0.01)


def test_profiles_travel_between_processes():
    profile = profiles.add(profiles.subset(0.1, 1.0, 10), 0.5)
    assert pickle.loads(pickle.dumps(profile)).epsilon(1e-5) == profile.epsilon(1e-5)


@pytest.mark.parametrize("constructor", ALL_SAMPLED)
@pytest.mark.parametrize(
    ("arguments", "name"),
    [((1.5, 1.0, 1), "q"), ((-0.1, 1.0, 1), "q"), ((0.1, 0.0, 1), "noise_multiplier"), ((0.1, 1.0, -1), "steps")],
)
def test_wrong_arguments_are_named(constructor, arguments, name):
    with pytest.raises(ValueError, match=name):
        constructor(*arguments)


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_delta_must_be_a_fraction(delta):
    with pytest.raises(ValueError, match="delta"):
        profiles.gaussian(1.0).epsilon(delta)


# Gamma noise.


def test_gamma_figure_of_paper_5():
    assert profiles.gamma(250 / 59535, 0.57, 2381).epsilon(1e-5) == pytest.approx(1.62, abs=0.01)


def brute_gamma(q, scale, steps, epsilon):
    """Return δ(ε) by enumerating all sequences of responses."""
    rare = 1 / (1 + math.exp(1 / scale))
    without = np.array([rare, 1 - rare])
    present = (1 - q) * without + q * without[::-1]
    joint = [np.ones(1), np.ones(1)]
    for _ in range(steps):
        joint = [np.outer(one, coin).ravel() for one, coin in zip(joint, (present, without), strict=True)]
    ratio = math.exp(epsilon)
    return max(np.maximum(0, p - ratio * r).sum() for p, r in (joint, joint[::-1]))


@pytest.mark.parametrize(("q", "scale"), [(0.1, 0.5), (0.6, 2.0), (1.0, 1.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.7])
def test_gamma_is_randomised_response(q, scale, epsilon):
    profile = profiles.gamma(q, scale, 9)
    exact = brute_gamma(q, scale, 9, epsilon)
    assert profile.delta(epsilon) == pytest.approx(exact, rel=1e-10, abs=1e-14)
    if exact > 1e-10:
        assert profile.epsilon(exact) == pytest.approx(epsilon, abs=1e-8)


def test_gamma_extremes():
    assert profiles.gamma(0.1, 1.0, 0).epsilon(1e-5) == 0.0
    assert profiles.gamma(0.1, 1e-4, 1).epsilon(1e-5) == pytest.approx(1e4, rel=0.01)
    assert profiles.gamma(0.01, 1e6, 1000).epsilon(1e-9) < 1e-5
    one = profiles.gamma(0.2, 0.5, 1)
    assert one.epsilon(1e-200) == pytest.approx(math.log1p(0.2 * math.expm1(2.0)), rel=1e-9)  # pure privacy
    assert profiles.gamma(0.3, 3.0, 10**7).epsilon(1e-5) > 1e3


@pytest.mark.parametrize(("q", "steps"), [(0.003, 1), (0.3, 3), (1e-9, 10), (1.0, 2)])
@pytest.mark.parametrize("scale", [1e-3, 1e-9, 1e-14, 1e-16, 1e-17, 1e-300])
def test_gamma_noise_that_vanishes_tells_who_took_part(q, steps, scale):
    """δ is the probability of taking part at all, to the last digit: odds of e^1e17 must not cancel it."""
    chance = -math.expm1(steps * math.log1p(-q)) if q < 1 else 1.0
    profile = profiles.gamma(q, scale, steps)
    assert profile.delta(1.0) == pytest.approx(chance, rel=1e-10)
    assert profile.delta(1.0) >= chance * (1 - 1e-15)
    assert profile.epsilon(0.99 * chance) > 0.99 * (1 / scale + math.log(q))


# Mixtures.


def dice_mus(counts, noise, steps, capped=True):
    """μ_k of docs/explanation/dice-guarantee.md, replace-one, B = C1 = C2 = 1 and C3 = 2."""
    energy = np.minimum(counts, steps) if capped else np.where(counts > 0, steps, 0.0)
    total = np.where(counts == 1, np.sqrt(1 + energy), np.sqrt(counts) + np.sqrt(energy))
    return 2 / noise * total


def test_mixture_figures_of_the_design():
    steps = 10**5
    counts, weights = participations(1 / steps, steps)
    mixed = profiles.mixture(weights, dice_mus(counts, 23.6, steps))
    assert mixed.epsilon(1e-5) == pytest.approx(1.0, rel=0.005)
    once = profiles.gaussian(float(dice_mus(np.ones(1), 10.6, steps)[0]))
    assert once.epsilon(1e-5) == pytest.approx(1.0, rel=0.01)
    uncapped = profiles.mixture(weights, dice_mus(counts, 2298.0, steps, capped=False))
    assert uncapped.epsilon(1e-5) == pytest.approx(1.0, rel=0.001)


def test_mixture_is_the_sum():
    weights, mus = [0.5, 0.3, 0.15], [0.1, 1.0, 3.0]
    profile = profiles.mixture(weights, mus)
    for epsilon in (0.0, 1.0, 4.0):
        expected = 0.05 + sum(w * gaussian.delta(mu, epsilon) for w, mu in zip(weights, mus, strict=True))
        assert profile.delta(epsilon) == pytest.approx(expected, rel=1e-12)
        assert profile.epsilon(expected) == pytest.approx(epsilon, abs=1e-9)
    assert profile.epsilon(0.05 - 1e-9) == math.inf
    assert profiles.mixture([0.9, 0.1], [1.0, math.inf]).epsilon(0.09) == math.inf
    assert profiles.mixture([1.0], [2.0]).epsilon(1e-5) == pytest.approx(gaussian.epsilon(2.0, 1e-5), rel=1e-10)
    assert profiles.mixture([1.0], [0.0]).epsilon(1e-5) == 0.0


@pytest.mark.parametrize(("weights", "mus"), [([0.7, 0.7], [1, 1]), ([-0.1, 0.5], [1, 1]), ([1.0], [1, 2])])
def test_mixtures_need_probabilities(weights, mus):
    with pytest.raises(ValueError, match="weights"):
        profiles.mixture(weights, mus)


@pytest.mark.parametrize(("q", "steps"), [(1e-5, 10**5), (0.3, 50), (0.5, 10**6), (1e-3, 10**9)])
def test_participations_are_never_understated(q, steps):
    counts, weights = participations(q, steps)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert counts[-1] <= steps
    mean = counts @ weights
    assert q * steps * (1 - 1e-9) <= mean <= q * steps * (1 + 1e-3) + 1e-9
    first, last = likely(steps, q)
    assert binom.cdf(first - 1, steps, q) < 1e-300
    assert binom.sf(last, steps, q) < 1e-300


# Addition, and the trade-off curve.


def test_adding_shifts():
    before = profiles.gaussian(1.0)
    after = profiles.add(before, 0.7)
    assert after.epsilon(1e-5) == before.epsilon(1e-5) + 0.7
    assert after.delta(2.7) == pytest.approx(before.delta(2.0), rel=1e-12)
    assert before.delta(0.1) < after.delta(0.1) < 1
    assert after.delta(0.7 - 1e-12) == pytest.approx(after.delta(0.7), abs=1e-9)


def test_addition_below_its_epsilon_is_randomised_response():
    # An ε-private release alone: its total variation is that of randomised response.
    alone = profiles.add(profiles.gaussian(0.0), 2.0)
    for epsilon in (0.0, 1.0, 1.9):
        assert alone.delta(epsilon) == pytest.approx(brute_gamma(1.0, 0.5, 1, epsilon), rel=1e-12)


def test_tradeoff_of_a_gaussian():
    alpha = np.linspace(0.001, 0.999, 50)
    exact = norm.cdf(norm.isf(alpha) - 1.5)
    curve = profiles.tradeoff(profiles.gaussian(1.5), alpha, points=400)
    assert np.all(curve <= exact + 1e-12)
    assert np.max(exact - curve) < 1e-3


def test_tradeoff_of_a_sampled_run():
    alpha = np.array([0.0, 0.01, 0.3, 1.0])
    curve = profiles.tradeoff(profiles.poisson(0.1, 2.0, 10), alpha, points=8)
    whole = profiles.tradeoff(profiles.gaussian(math.sqrt(10) / 2), alpha)
    assert np.all(curve >= whole)
    assert np.all(curve <= 1 - alpha)
    assert curve[2] > whole[2] + 0.2


def test_tradeoff_of_what_reveals_all():
    assert profiles.tradeoff(profiles.gaussian(math.inf), [0.0, 0.5]).tolist() == [0.0, 0.0]
    assert profiles.tradeoff(profiles.gaussian(0.0), [0.25, 0.5]).tolist() == [0.75, 0.5]
    assert profiles.tradeoff(profiles.mixture([0.4], [0.0]), [0.1]) == pytest.approx([0.3])
    with pytest.raises(ValueError, match="alpha"):
        profiles.tradeoff(profiles.gaussian(1.0), [1.5])


@pytest.mark.parametrize(
    ("make", "q", "z", "delta"),
    [
        (profiles.poisson, 0.20258, 421.85, 1.7e-14),
        (profiles.subset, 0.31483, 372.87, 8.6e-14),
        (profiles.poisson, 0.93894, 544.66, 1.1e-11),
        (profiles.poisson, 0.10595, 257.9, 2.4e-9),
    ],
)
def test_weak_steps_are_tight_too(make, q, z, delta):
    """One step, where the shift is small: H_α(mix‖base) in closed form, by bisection in high precision."""
    mpmath.mp.dps = 60
    mu, q_ = mpmath.mpf(1) / mpmath.mpf(z), mpmath.mpf(q)

    def exact(epsilon):
        level = mpmath.log((mpmath.exp(epsilon) - (1 - q_)) / q_)  # of the likelihood ratio of the shifted part
        x = level / mu + mu / 2
        mix = (1 - q_) * mpmath.ncdf(-x) + q_ * mpmath.ncdf(mu - x)
        return mix - mpmath.exp(epsilon) * mpmath.ncdf(-x)

    low, high = mpmath.mpf(0), mpmath.mpf(1)
    for _ in range(150):
        middle = (low + high) / 2
        low, high = (middle, high) if exact(middle) > delta else (low, middle)
    found = make(q, z, 1).epsilon(delta)
    assert float(high) * (1 - 1e-12) <= found <= 1.01 * float(high) + 2e-5


@pytest.mark.parametrize(
    ("q", "scale", "steps", "delta"), [(1.26e-12, 261.4, 20, 1.3e-18), (1.66e-12, 23.08, 20, 5.07e-17)]
)
def test_rare_gamma_releases_are_not_below_the_truth(q, scale, steps, delta):
    mpmath.mp.dps = 60
    odds = mpmath.mpf(1) / mpmath.mpf(scale)
    rare = 1 / (1 + mpmath.exp(odds))
    one = rare * (1 + mpmath.mpf(q) * mpmath.expm1(odds))
    up, down = mpmath.log(one / rare), mpmath.log((1 - one) / (1 - rare))
    epsilon = mpmath.mpf(profiles.gamma(q, scale, steps).epsilon(delta))
    truth = mpmath.mpf(0)
    for k in range(steps + 1):
        loss = k * up + (steps - k) * down
        if loss > epsilon:
            weight = mpmath.binomial(steps, k) * one**k * (1 - one) ** (steps - k)
            truth += weight * -mpmath.expm1(epsilon - loss)
    assert truth <= delta
