"""The best of a random number of trials: against exact enumerations, against attacks, and beside the published bound."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from scipy.stats import chisquare, norm

from clipsilon.engine.streams import spawn
from clipsilon.privacy.accounting import gaussian as gdp
from clipsilon.privacy.accounting import profiles
from clipsilon.privacy.accounting.profiles import Profile
from clipsilon.privacy.accounting.selection import TrialCount, _log_ratio, best_of, trial_count, worst_of
from clipsilon.privacy.auditing.inference import clopper_pearson_bound

COUNTS = [trial_count(mean, eta) for mean in (1.0, 1.3, 2.0, 5.0) for eta in (-0.5, 0.0, 0.7, 1.0, 3.0)]
COUNTS += [trial_count(20.0, eta) for eta in (0.0, 1.0, 3.0)]


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def exact_profile(p, q):
    """The profile of one discrete pair, both directions."""
    return Profile(
        lambda epsilon: max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon)), lambda delta: math.nan
    )


@cache
def generating_function(count):
    """E t^K: of the weights where they are few, otherwise of the whole distribution."""
    gamma, eta, weights = count
    if len(weights) < 200:
        shares = np.r_[0.0, np.array(weights, dtype=float) / sum(weights)]
        return lambda t: float(np.polyval(shares[::-1], t))
    if eta == 0:
        return lambda t: math.log1p(-(1 - gamma) * t) / math.log(gamma)
    return lambda t: math.expm1(-eta * math.log1p(-(1 - gamma) * t)) / math.expm1(-eta * math.log(gamma))


def best_law(p, ranks, count):
    """The law of the best of K draws from p, where outcomes of equal rank tie and the first drawn wins."""
    generating = generating_function(count)
    law = np.zeros_like(p)
    for rank in np.unique(ranks):
        tied = ranks == rank
        below = p[ranks < rank].sum()
        gained = generating(min(1.0, below + p[tied].sum())) - generating(below)
        law[tied] = gained * p[tied] / p[tied].sum()
    return law


def random_pair(rng):
    """Two laws on two to five outcomes: from nearly equal to far apart, some with nearly impossible outcomes."""
    size = int(rng.integers(2, 6))
    p = np.maximum(rng.dirichlet(np.full(size, rng.choice([0.2, 1.0, 5.0]))), 1e-9)
    q = np.maximum(p * np.exp(rng.normal(size=size) * rng.choice([0.1, 0.5, 2.0])), 1e-9)
    ranks = rng.permutation(size) if rng.random() < 0.7 else rng.integers(0, size, size)
    return p / p.sum(), q / q.sum(), ranks


def excess(rng, cost=None):
    """Return the exact δ of a random search, less the certified one, at a few ε; `cost` replaces that of the proof."""
    p, q, ranks = random_pair(rng)
    count = COUNTS[int(rng.integers(len(COUNTS)))]
    trial = exact_profile(p, q)
    p, q = best_law(p, ranks, count), best_law(q, ranks, count)
    own = (1 + count.eta) * _log_ratio(trial, count.gamma)
    moved = own if cost is None else cost(count, own)
    found = []
    for rest in rng.uniform(0, 1.5, 4):
        certified = min(1.0, count.mean * trial.delta(rest))
        found.append(max(hockey_stick(p, q, moved + rest), hockey_stick(q, p, moved + rest)) - certified)
    return max(found)


def test_exact_enumerations():
    """Nothing is random but the cases: every law is computed."""
    rng = np.random.default_rng(0)
    assert max(excess(rng) for _ in range(800)) <= 1e-12


@pytest.mark.verify
def test_many_exact_enumerations():
    rng = np.random.default_rng(1)
    assert max(excess(rng) for _ in range(30_000)) <= 1e-12


def test_the_enumerations_would_notice_a_smaller_cost():
    """With η·log λ, or with log λ, in the place of (1 + η)·log λ the theorem is wrong."""
    for cost in (lambda count, own: own * count.eta / (1 + count.eta), lambda count, own: 0.6 * own):
        rng = np.random.default_rng(2)
        assert max(excess(rng, lambda count, own, cost=cost: max(0.0, cost(count, own))) for _ in range(800)) > 1e-4


def test_the_profile_is_the_theorem():
    count = trial_count(20.0)
    best = best_of(profiles.gaussian(0.3), count)
    cost = 2 * _log_ratio(profiles.gaussian(0.3), count.gamma)
    assert best.delta(cost + 1.0) == pytest.approx(count.mean * gdp.delta(0.3, 1.0), rel=1e-9)
    assert best.delta(0.99 * cost) == 1
    for delta in (1e-3, 1e-6, 1e-9):
        assert best.delta(best.epsilon(delta)) <= delta * (1 + 1e-9)
    assert best_of(profiles.gaussian(0.3), trial_count(1)).epsilon(1e-5) == gdp.epsilon(0.3, 1e-5)


@pytest.mark.parametrize("mu", [0.03, 0.27, 0.72, 3.0])
@pytest.mark.parametrize("count", COUNTS[5:], ids=lambda count: f"{count.gamma:.2g}, {count.eta}")
def test_the_ratio_is_least_and_below_the_published_one(mu, count):
    trial = profiles.gaussian(mu)
    ratio = math.exp(_log_ratio(trial, count.gamma))
    odds = (1 - count.gamma) / count.gamma
    assert ratio - 1 >= odds * trial.delta(math.log(ratio))
    lower = math.exp(math.log(ratio) * 0.99)
    assert lower - 1 < odds * trial.delta(math.log(lower))
    published = min(math.exp(e) + odds * trial.delta(e) for e in np.geomspace(1e-4, 30, 400))
    assert ratio <= published * (1 + 2e-3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_twenty_trials_cost_less_than_half_of_what_releasing_them_does(epsilon):
    mu = gdp.largest_mu(epsilon, 1e-5)
    searched = best_of(profiles.gaussian(mu), trial_count(20)).epsilon(1e-5)
    assert searched <= 2.02 * epsilon
    assert gdp.epsilon(mu * math.sqrt(20), 1e-5) > 5 * epsilon


@pytest.mark.parametrize("count", COUNTS, ids=lambda count: f"{count.gamma:.2g}, {count.eta}")
def test_weights_never_exceed_the_ratios_of_the_distribution(count):
    weights = count.weights
    for k in range(1, len(weights)):
        allowed = (1 - Fraction(count.gamma)) * (k + Fraction(count.eta)) / (k + 1)
        assert Fraction(weights[k], weights[k - 1]) <= allowed
    assert sum(weights) < 2**62


@pytest.mark.parametrize("mean", [1.0, 1.3, 20.0, 100.0])
@pytest.mark.parametrize("eta", [0.0, 1.0, 3.0])
def test_the_mean_is_the_one_that_was_asked_for(mean, eta):
    found = trial_count(mean, eta).mean
    assert mean * (1 - 1e-6) <= found <= mean * (1 + 1e-12)


def test_draws_have_the_weights():
    """A fixed seed; over all seeds a false alarm has probability 1e-7."""
    count, rng = trial_count(4.0), spawn(5, 1)[0].records
    drawn = np.bincount([count.draw(rng) for _ in range(20_000)], minlength=len(count.weights) + 1)[1:]
    expected = np.array(count.weights) / sum(count.weights) * 20_000
    common = expected > 20
    observed = np.r_[drawn[common], drawn[~common].sum()]
    assert chisquare(observed, np.r_[expected[common], 20_000 - expected[common].sum()]).pvalue > 1e-7
    assert trial_count(1).draw(rng) == 1


@pytest.mark.parametrize("block", range(4))
def test_attacks_cannot_exceed_the_certificate(block):
    """200 configurations of trials that release their score, so that the maximum shows most; 20,000 searches each.

    Each attack is wrong with probability 1e-9, all of them with 2e-7. The attack is a threshold on the best score.
    """
    rng = np.random.default_rng(block)
    shown = []
    for _ in range(50):
        mu, eta = float(rng.uniform(0.05, 2.0)), float(rng.choice([0.0, 1.0, 2.0]))
        count = trial_count(float(rng.uniform(1.5, 40)), eta)
        delta = float(10 ** rng.uniform(-5, -2))
        certified = best_of(profiles.gaussian(mu), count).epsilon(delta)
        weights = np.array(count.weights, dtype=float)
        trials = rng.choice(np.arange(1, weights.size + 1), p=weights / weights.sum(), size=(2, 20_000))
        best = norm.ppf(rng.uniform(size=trials.shape) ** (1 / trials))  # the largest of K normals
        demonstrated = clopper_pearson_bound(best[0], best[1] + mu, delta, 1 - 1e-9).lower_bound
        assert demonstrated <= certified
        shown.append(demonstrated / certified)
    assert max(shown) > 0.3  # the attacks do attack


def test_the_best_attacks_stay_below_the_certificate_and_above_one_trial():
    """200 searches among Gaussian scores, with exact laws on a fine grid: no attack is better than the hockey stick."""
    rng = np.random.default_rng(0)
    x, step = np.linspace(-14.0, 18.0, 8001, retstep=True)
    for _ in range(200):
        mu, delta = float(rng.uniform(0.05, 2.0)), float(10 ** rng.uniform(-5, -2))
        count = trial_count(float(rng.uniform(1.5, 40)), float(rng.choice([0.0, 1.0, 2.0])))
        p, q = (
            step * norm.pdf(x - m) * count.mean * (count.gamma / (count.gamma + (1 - count.gamma) * norm.sf(x - m)))
            ** (1 + count.eta)
            for m in (0.0, mu)
        )  # fmt: skip
        certified, one = best_of(profiles.gaussian(mu), count).epsilon(delta), gdp.epsilon(mu, delta)
        exact = [max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon)) for epsilon in (certified, one)]
        assert exact[0] <= delta < exact[1]


def test_equal_settings_are_evaluated_once():
    poisson = [profiles.poisson(0.01, z, 100) for z in (1.0, 1.0, 1.2)]
    assert worst_of(poisson) is poisson[0]
    assert worst_of([poisson[2], poisson[0]]) is poisson[0]
    both = worst_of([*poisson, profiles.gaussian(0.1), profiles.gaussian(0.2)])
    assert both.delta(0.1) == max(poisson[0].delta(0.1), gdp.delta(0.2, 0.1))
    other = [profiles.poisson(0.02, 1.0, 100), profiles.poisson(0.01, 1.0, 200)]
    assert worst_of([poisson[0], *other]).delta(0.2) == max(each.delta(0.2) for each in (poisson[0], *other))


@pytest.mark.parametrize(("mean", "eta", "message"), [(0.9, 1, "mean must be"), (2, -1, "eta must be")])
def test_wrong_counts_are_refused(mean, eta, message):
    with pytest.raises(ValueError, match=message):
        trial_count(mean, eta)


def test_a_count_is_a_plain_record():
    assert TrialCount(1.0, 1.0, (1,)) == trial_count(1)
