"""Numerical checks of docs/explanation/dice-guarantee.md: the counterexample, and the steps of the proof."""

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

import clipsilon as cs

RECORDS, CLAIMED, DELTA = 10_000, 0.03, 1e-4


def published_noise(steps):
    return np.sqrt(96 * steps * np.log(1 / DELTA)) / (RECORDS * CLAIMED)


def true_epsilon(right, threshold):
    """Return the largest ε that a threshold rules out."""
    some = right > DELTA
    return np.max(np.log(right[some] - DELTA) - log_ndtr(-threshold[some]))


@pytest.mark.parametrize(("steps", "epsilon"), [(10**4, 48.5), (10**6, 51.2)])
def test_the_second_half_reveals_the_record(steps, epsilon):
    shift = np.sqrt(steps / 2) / published_noise(steps)
    chance = 1 - (1 - 1 / RECORDS) ** (steps // 2)
    threshold = np.linspace(0.0, shift + 6.0, 5001)
    right = chance * ndtr(shift - threshold) + (1 - chance) * ndtr(-threshold)
    assert round(true_epsilon(right, threshold), 1) == epsilon


def project(vectors, radius):
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors * np.minimum(1.0, radius / np.maximum(lengths, 1e-300))


def test_the_last_iterate_reveals_as_much():
    steps = 10**4
    t = np.arange(steps)
    first = (1 - 1 / RECORDS) ** t / RECORDS  # the chance that the record is first drawn at step t
    threshold = np.linspace(8.0, 16.0, 81)
    shifts = (steps - t) / (published_noise(steps) * np.sqrt(steps))
    right = np.array([first @ ndtr(shifts - one) for one in threshold])
    assert round(true_epsilon(right, threshold), 1) == 73.9


def within_the_lemma(steps):
    """Return an ε that a record with a gradient of 1 + s/36 rules out."""
    noise, rate = published_noise(steps), 1 / RECORDS
    left = noise / 36  # G'
    assert rate * left < 0.3
    fewest = binom.ppf(1e-5, steps, rate)
    most_error = 1e5 * (1 + rate * left**2) / (2 * (1 - rate * left))
    shift = (fewest * (1 + left) - most_error) / (noise * np.sqrt(steps))
    threshold = np.linspace(0.0, shift + 6.0, 5001)
    return true_epsilon(ndtr(shift - threshold) - 2e-5, threshold)


def test_gradients_within_the_lemma_break_the_claim():
    order = 1 + np.sqrt(2) * np.log(1 / DELTA) / CLAIMED  # the Rényi order α of the proof's last step
    ratio, share = 18.0, np.log(1 + RECORDS / (order - 1))  # noise over sensitivity, and the lemma's C_3
    most = (ratio**2 * share**2 / 2 - np.log(5) - 2 * np.log(ratio)) / (share + np.log(order / RECORDS) + 1 / 648)
    assert order < ratio**2 * share / 2 - 2 * np.log(ratio)
    assert order < most
    assert within_the_lemma(10**10) > 0.85
    assert within_the_lemma(10**12) > 13


def test_differences_that_show_drain():
    """Inequalities (i) to (iii) of step 2."""
    rng, radius = np.random.default_rng(0), 0.7
    first, second = rng.normal(scale=rng.choice([0.1, 1.0, 10.0], (2, 100_000, 1)), size=(2, 100_000, 3))
    p = project(first, radius) - project(second, radius)
    q = first - second - p
    d_length, p_length, q_length = (np.linalg.norm(value, axis=1) for value in (first - second, p, q))
    assert np.all(p_length**2 + q_length**2 <= d_length**2 + 1e-9)
    assert np.all((p * q).sum(axis=1) >= p_length**2 * q_length / (2 * radius) - 1e-9)
    assert np.all(p_length**2 <= 2 * radius * (d_length - q_length) + 1e-9)


def means(gradients, cap):
    """Return all v_t in three dimensions; `gradients` holds a batch of two records per step."""
    error, found = np.zeros(3), []
    for batch in gradients:
        found.append(project(batch, 1.0).mean(axis=0) + project(error, 1.0))
        error = error + project(batch, cap).mean(axis=0) - found[-1]
    return np.array(found)


@pytest.mark.parametrize(
    ("options", "noise"),
    [
        ({"residual_cap": 2.0}, 23.6),
        ({"residual_cap": 2.0, "sampling": "single-pass"}, 10.6),
        ({}, 2298),
        ({"residual_cap": 1.001}, 11.8),
        ({"residual_cap": 1.0}, 0.86),
    ],
)
def test_noise_for_a_certified_epsilon_of_one(options, noise):
    rule = cs.DiceSGD(cs.schedules.Constant(1.0), clip=1.0, error_clip=1.0, noise_std=3.0, **options)
    with pytest.warns(cs.PrivacyWarning, match="at least 1 in 100000 records"):
        found = cs.calibrate(rule, epsilon=1.0, delta=1e-5, records=100_000, steps=100_000)
    assert found.noise.std == pytest.approx(noise, rel=5e-3)


def test_pairs_of_runs_stay_within_the_bound():
    rng = np.random.default_rng(0)
    often = cs.DiceSGD(
        cs.schedules.Constant(1.0),
        clip=1.0,
        error_clip=1.0,
        noise_std=3.0,
        residual_cap=4.0,
        batch=2,
        sampling="epochs",
    )
    most = cs.account(often, records=8, steps=12, delta=1e-5).gaussian_mu  # 3 participations
    for _ in range(300):
        one = rng.normal(size=(12, 2, 3)) * rng.choice([0.5, 5.0], (12, 2, 1))
        other = one.copy()
        steps = rng.choice(12, 3, replace=False)
        other[steps, 0] = -5.0 * one[steps, 0]  # where the record that differs takes part
        assert np.linalg.norm(means(one, 4.0) - means(other, 4.0)) / 3.0 <= most
