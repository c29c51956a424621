"""The attack on low bits: it finds the data behind floating-point noise, and nothing behind exact noise.

A guess between two neighbours that are μ·σ apart is right with a probability of at most Φ(μ/2), whatever the attack. So
exact noise passes if the rate does not exceed this by more than 5.5 deviations (false alarm: 2e-8), and the noise that
was used before fails.
"""

import numpy as np
import pytest
from numpy.random import SFC64, Generator
from randomgen import AESCounter
from scipy.stats import norm

import clipsilon as cs
from clipsilon.engine import exact_noise
from clipsilon.local.report import gradient_of, prepare, release
from clipsilon.privacy.auditing import bits

MU = 0.1


def sums(seed, dimension, std, dtype=np.float64):
    """Return the clipped sums of two neighbours, one record of length μ·σ apart, and the deviation of the noise."""
    rng = np.random.default_rng(seed)
    record = rng.standard_normal(dimension)
    first = std * rng.standard_normal(dimension) / 20
    second = first + MU * std * record / np.linalg.norm(record)
    return np.array([first, second], dtype=dtype)


def success(released, candidates, truth, std):
    """Return how often the candidate with fewer impossible numbers is the true one; a tie counts one half."""
    wrong = [
        np.count_nonzero(
            ~bits.is_possible(released.ravel(), np.resize(c, released.size), std).reshape(released.shape), axis=1
        )
        for c in candidates
    ]
    decided = np.sign(wrong[0] - wrong[1])
    return float(np.mean(0.5 + 0.5 * decided * (2 * truth - 1)))


def highest(mu, draws):
    return norm.cdf(mu / 2) + 5.5 * 0.5 / np.sqrt(draws)


def float_noise(exact, std, rng):
    return exact + std * rng.standard_normal(exact.shape)


def float32_noise(exact, std, rng):
    return exact + np.float32(std) * rng.standard_normal(exact.shape, dtype=np.float32)


def exact_releases(exact, std, rng):
    q = np.trunc(exact.ravel().astype(np.float64) / exact_noise.grid_of(std)).astype(np.int64)
    return exact_noise.release(q, std, rng).reshape(exact.shape).astype(exact.dtype)


WAYS = {
    "float64": (np.float64, float_noise),
    "float32": (np.float32, float32_noise),
}
DRAWS = [600, pytest.param(10_000, marks=pytest.mark.verify)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("std", [1.0, 0.83])
def test_one_step_identifies_the_data_behind_floating_point_noise(way, std):
    """d = 20,000 and μ = 0.1, which certifies ε = 0.36 at δ = 1e-5: every step is identified."""
    dtype, add = WAYS[way]
    for seed in range(6):
        candidates = sums(seed, 20_000, std, dtype)
        released = add(candidates[seed % 2], std, np.random.default_rng(100 + seed))
        assert bits.is_possible(released, candidates[seed % 2], std).all()  # the truth is never ruled out
        assert bits.identify(released, list(candidates), std) == seed % 2


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("way", WAYS)
def test_small_releases(way, draws):
    dtype, add = WAYS[way]
    std, rng = 0.83, Generator(SFC64(7))
    candidates = sums(3, 100 if dtype == np.float32 else 10, std, dtype)
    truth = rng.integers(2, size=draws)
    allowed = highest(MU, draws)
    assert success(add(candidates[truth], std, rng), candidates, truth, std) > max(0.7, allowed)
    assert (
        success(exact_releases(candidates[truth], std, Generator(AESCounter(key=5))), candidates, truth, std) < allowed
    )


def local_reports(draws, make):
    """Return reports of records whose label is to be guessed, the gradients of both labels, and the labels."""
    loss, rng = cs.losses.MallowsLogistic(), np.random.default_rng(2)
    theta, features = rng.standard_normal(20), rng.standard_normal((draws, 20))
    truth = rng.integers(2, size=draws)
    problems = [[prepare((x, label), loss) for label in (0, 1)] for x in features]
    gradients = np.array([[gradient_of(problem, theta) for problem in pair] for pair in problems])
    return make([pair[label] for pair, label in zip(problems, truth, strict=True)], theta), gradients, truth


def label_guesses(reports, gradients, truth, std):
    wrong = np.stack(
        [
            (~bits.is_possible(reports.ravel(), gradients[:, k].ravel(), std)).reshape(reports.shape).sum(axis=1)
            for k in (0, 1)
        ]
    )
    return float(np.mean(0.5 + 0.5 * np.sign(wrong[0] - wrong[1]) * (2 * truth - 1)))


@pytest.mark.parametrize("draws", DRAWS)
def test_local_reports_do_not_disprove_a_label(draws):
    mu, sensitivity = 0.1, cs.losses.MallowsLogistic().sensitivity()
    old, new = Generator(SFC64(1)), Generator(AESCounter(key=1))

    def add_floats(problems, theta):
        return np.array([gradient_of(p, theta) + sensitivity / mu * old.standard_normal(20) for p in problems])

    def send(problems, theta):
        return np.array([release(p, theta, mu, new) for p in problems])

    assert label_guesses(*local_reports(draws, add_floats), sensitivity / mu) > 0.8
    scale = float(np.nextafter(sensitivity / mu, np.inf))
    assert label_guesses(*local_reports(draws, send), scale) < highest(mu, draws)


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="released must be an array of float64 or float32, got int64"):
        bits.is_possible(np.arange(3), 0.0, 1.0)
    with pytest.raises(ValueError, match="std must be"):
        bits.is_possible(np.ones(3), 0.0, 0.0)


def test_nothing_is_told_apart_where_nothing_differs():
    assert bits.identify(np.random.default_rng(0).standard_normal(10), [np.zeros(10), np.zeros(10)], 1.0) is None
