"""Intervals cover the truth as often as they say, from noise and sampling together, and are as narrow as promised."""

import warnings

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import clipsilon as cs
from clipsilon.privacy.accounting import gaussian


class Known:
    """A classifier whose only column is the log-odds."""

    _estimator_type = "classifier"
    classes_ = np.array([0, 1])

    def __sklearn_tags__(self):
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags("classifier", TargetTags(required=True), classifier_tags=ClassifierTags(), input_tags=InputTags())

    def predict_proba(self, X):
        odds = np.asarray(X)[:, 0]
        return np.column_stack([expit(-odds), expit(odds)])


class Sample:
    """Scores of two normal classes: calibrated if the deviations are equal and the slope is 1."""

    def __init__(self, rate, distance, deviation=1.0, slope=1.0):
        self.rate, self.distance, self.deviation, self.slope = rate, distance, deviation, slope
        self.auc = stats.norm.cdf(distance / np.hypot(1, deviation))
        y, odds = self.draw(np.random.default_rng(0), 400_000)
        self.accuracy = np.mean((odds > 0) == y)
        self.log_loss = np.mean(np.logaddexp(0, np.clip(np.where(y == 1, -odds, odds), -8, 8)))  # as documented

    def draw(self, rng, people):
        y = (rng.random(people) < self.rate).astype(int)
        x = rng.standard_normal(people) * np.where(y == 1, self.deviation, 1) + self.distance * y
        odds = self.distance * x - self.distance**2 / 2 + np.log(self.rate / (1 - self.rate))
        return y, self.slope * odds


class Skewed:
    """Scores whose distribution has a long tail above or below, or positives above or below all negatives."""

    def __init__(self, rate, auc, shape):
        self.rate, self.auc, self.shape = rate, auc, shape

    def draw(self, rng, people):
        y = (rng.random(people) < self.rate).astype(int)
        x = rng.exponential(size=people)
        if self.shape == "apart":
            return y, np.where(y == 1, np.where(rng.random(people) < self.auc, 9.0, -9.0), 0.0) + x
        odds = self.auc / (1 - self.auc)  # of winning, for exponential scores whose means have this ratio
        return y, x * np.where(y == 1, odds, 1.0) if self.shape == "above" else -x * np.where(y == 1, 1.0, odds)


def simulate(sample, people, epsilon, runs, **settings):
    rng, found = np.random.default_rng(1), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cs.PrivacyWarning)
        for run in range(runs):
            y, odds = sample.draw(rng, people)
            found.append(cs.private_scores(Known(), odds[:, None], y, epsilon, random_state=run, **settings))
    return found


def coverage(found, name, truth):
    return np.mean([scores.figures[name].low <= truth <= scores.figures[name].high for scores in found])


def margin(found, name):
    return np.mean([scores.figures[name].margin for scores in found])


TRUTHS = {"roc_auc": "auc", "accuracy": "accuracy", "log_loss": "log_loss", "positive_rate": "rate"}


@pytest.mark.parametrize(("rate", "people", "epsilon"), [(0.5, 1000, 1.0), (0.03, 2000, 2.0)])
def test_intervals_cover_the_truth(rate, people, epsilon):
    """100 runs: fewer than 80 hits have a probability below 1e-7 at a coverage of 95 %, for each of the figures."""
    sample = Sample(rate, 1.2)
    found = simulate(sample, people, epsilon, 100)
    assert stats.binom.cdf(79, 100, 0.95) < 1e-7
    for name, attribute in TRUTHS.items():
        assert coverage(found, name, getattr(sample, attribute)) >= 0.8


@pytest.mark.parametrize("slope", [0.02, 6.0])
def test_the_interval_of_the_auc_covers_what_the_grid_hides(slope):
    """Nearly all scores in two cells, and many beyond ±8. 40 runs: fewer than 28 hits are below 1e-7 at 95 %."""
    sample = Sample(0.5, 1.2, slope=slope)
    assert stats.binom.cdf(27, 40, 0.95) < 1e-7
    assert coverage(simulate(sample, 3000, 1.0, 40), "roc_auc", sample.auc) >= 0.7


CASES = {
    "balanced": (Sample(0.5, 1.2), 4000, 0.5, {}),
    "balanced, strong": (Sample(0.5, 2.5), 4000, 0.5, {}),
    "balanced, few": (Sample(0.5, 1.2), 300, 1.0, {}),
    "rare": (Sample(0.03, 1.2), 4000, 0.5, {}),
    "rare, few": (Sample(0.03, 1.2), 400, 1.0, {}),
    "rare, many": (Sample(0.03, 1.2), 30_000, 1.0, {}),
    "unequal deviations": (Sample(0.3, 1.2, 1.8), 3000, 1.0, {}),
    "too steep": (Sample(0.3, 1.2, slope=4.0), 3000, 1.0, {}),
    "too steep, unequal deviations": (Sample(0.3, 1.2, 1.8, slope=2.0), 3000, 1.0, {}),
    "too flat": (Sample(0.3, 1.2, slope=0.3), 3000, 1.0, {}),
    "replaced": (Sample(0.2, 1.5), 4000, 0.5, {"adjacency": "replace-one"}),
    "hidden size": (Sample(0.2, 1.5), 4000, 0.5, {"adjacency": "add-remove"}),
}


@pytest.mark.verify
@pytest.mark.parametrize("case", CASES)
def test_intervals_cover_the_truth_in_94_of_100_cases(case):
    """1,000 runs. Seeds are fixed; the requirement is 94 % for a stated 95 %."""
    sample, people, epsilon, settings = CASES[case]
    found = simulate(sample, people, epsilon, 1000, **settings)
    covered = {name: coverage(found, name, getattr(sample, attribute)) for name, attribute in TRUTHS.items()}
    assert min(covered.values()) >= 0.94, covered


def test_the_interval_of_the_auc_is_narrow_on_a_balanced_table():
    """4,000 people at ε = 0.5: below ±0.02 on average, whose error over 20 runs is far smaller than the difference."""
    assert margin(simulate(Sample(0.5, 1.2), 4000, 0.5, 20), "roc_auc") < 0.02


def sampling_margin(sample, people):
    """Return 1.96 standard deviations of the AUC over samples, without noise (Hanley and McNeil, 1982)."""
    x, weights = np.polynomial.hermite_e.hermegauss(100)
    wins = (
        stats.norm.cdf(sample.distance + sample.deviation * x),
        stats.norm.sf((x - sample.distance) / sample.deviation),
    )
    of_positives, of_negatives = (weights @ (own - sample.auc) ** 2 / weights.sum() for own in wins)
    positives = sample.rate * people
    negatives = people - positives
    pairs = sample.auc * (1 - sample.auc) + (negatives - 1) * of_positives + (positives - 1) * of_negatives
    return 1.96 * np.sqrt(pairs / (positives * negatives))


def test_the_deviation_of_the_auc_over_samples_is_as_computed():
    """2,000 samples: the standard deviation is known to 1.6 %, and 10 % are more than six of its own deviations."""
    sample, rng, found = Sample(0.3, 1.2), np.random.default_rng(2), []
    for _ in range(2000):
        y, odds = sample.draw(rng, 1000)
        ranks, positives = stats.rankdata(odds), y.sum()
        found.append((ranks[y == 1].sum() - positives * (positives + 1) / 2) / (positives * (1000 - positives)))
    assert 1.96 * np.std(found) == pytest.approx(sampling_margin(sample, 1000), rel=0.1)


@pytest.mark.verify
@pytest.mark.parametrize(("people", "epsilon"), [(4000, 3.0), (100_000, 0.5)])
def test_noise_adds_little_where_there_are_enough_rare_positives(people, epsilon):
    """3 % positives: at most 1.3 × sampling alone, on average over 20 runs."""
    sample = Sample(0.03, 1.2)
    ours = margin(simulate(sample, people, epsilon, 20), "roc_auc")
    assert ours <= 1.3 * sampling_margin(sample, people)


AREAS = {
    f"{shape}, {auc}, {rate}": Sample(rate, np.sqrt(2) * stats.norm.ppf(auc))
    if shape == "normal"
    else Skewed(rate, auc, shape)
    for shape in ("normal", "above", "below", "apart")
    for auc in (0.6, 0.8, 0.95)
    for rate in (0.03, 0.3)
}


def test_the_interval_of_the_auc_alone_covers_the_truth_and_is_narrow():
    """4,000 people, 3 % positive, ε = 0.5. 60 runs: fewer than 44 hits are below 1e-7 at a coverage of 95 %."""
    sample = Sample(0.03, 1.2)
    found = simulate(sample, 4000, 0.5, 60, figures="auc")
    assert stats.binom.cdf(43, 60, 0.95) < 1e-7
    assert coverage(found, "roc_auc", sample.auc) >= 44 / 60
    assert margin(found, "roc_auc") <= 1.35 * sampling_margin(sample, 4000)  # known to 1.5 % from 60 runs


@pytest.mark.verify
@pytest.mark.parametrize("case", AREAS)
def test_the_interval_of_the_auc_alone_covers_the_truth_in_94_of_100_cases(case):
    """1,000 runs of 4,000 people at ε = 0.5. Seeds are fixed; the requirement is 94 % for a stated 95 %."""
    found = simulate(AREAS[case], 4000, 0.5, 1000, figures="auc")
    assert coverage(found, "roc_auc", AREAS[case].auc) >= 0.94


@pytest.mark.verify
@pytest.mark.parametrize(
    ("people", "epsilon", "settings"), [(4000, 0.5, {}), (4000, 1.0, {"adjacency": "replace-one"}), (100_000, 0.5, {})]
)
def test_noise_adds_little_to_the_auc_alone(people, epsilon, settings):
    """3 % positives: at most 1.3 × sampling alone, on average over 300 runs."""
    sample = Sample(0.03, 1.2)
    ours = margin(
        simulate(sample, people, epsilon, 300 if people < 10_000 else 20, figures="auc", **settings), "roc_auc"
    )
    assert ours <= 1.3 * sampling_margin(sample, people)


def test_how_far_4000_people_with_rare_positives_are_from_that():
    """The bounds of proofs.md at ε = 0.5: 1.75 × sampling for Gaussian privacy, 1.08 × for every private release."""
    people, epsilon, delta = 4000, 0.5, 1e-5
    sample = Sample(0.03, 1.2)
    alone, change = sampling_margin(sample, people) / 1.96, 1 / (sample.rate * people)
    mu = gaussian.largest_mu(epsilon, delta)
    both = (1 + np.exp(epsilon)) * delta
    bounds = change / np.sqrt(np.expm1(4 * mu**2)), (change - both) / (2 * np.sinh(epsilon))
    assert [round(float(np.hypot(1, bound / alone)), 2) for bound in bounds] == [1.75, 1.08]
