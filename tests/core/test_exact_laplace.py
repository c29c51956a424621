"""Exact Laplace noise: its coins, its law, and the same draws in Python and compiled."""

import math

import numpy as np
import pytest
from numba import njit
from numpy.random import SFC64
from scipy import stats

from clipsilon._core import exact_laplace
from clipsilon._core.exact_laplace import integer_laplace


@njit
def draw(bits, count):
    out = np.empty(count, np.int64)
    for i in range(count):
        out[i] = integer_laplace(bits)
    return out


@njit
def coins(bits, numerator, count):
    heads = 0
    for _ in range(count):
        heads += exact_laplace._exponential_coin(bits, numerator)
    return heads


def test_compiled_and_interpreted_draw_the_same():
    bits = SFC64(1)
    assert [integer_laplace(bits) for _ in range(5000)] == draw(SFC64(1), 5000).tolist()


@pytest.mark.parametrize("numerator", [0, 1, 2**20, 2**31, 3 * 2**30, 2**32 - 1, 2**32])
def test_coins_have_the_probability_of_the_exponential(numerator):
    """False alarm: a two-sided test at 1e-8."""
    p = math.exp(-numerator / 2**32)
    heads = coins(SFC64(numerator), numerator, 200_000)
    assert heads == 200_000 if numerator == 0 else stats.binomtest(heads, 200_000, p).pvalue > 1e-8


@pytest.mark.parametrize("k", [1, 2, 3, 5, 12, 100])
def test_one_in_k(k):
    """False alarm: a two-sided test at 1e-8."""
    bits = SFC64(k)
    hits = sum(exact_laplace._one_in(bits, k) for _ in range(20_000))
    assert hits == 20_000 if k == 1 else stats.binomtest(hits, 20_000, 1 / k).pvalue > 1e-8


def battery(z):
    """Return p-values of tests of the law; none may be below 1e-8 (false alarm of all together: 1e-6)."""
    n, x = z.size, (z + 0.5) / 2.0**32
    edges = stats.laplace.ppf(np.arange(1, 1000) / 1000)
    yield stats.chisquare(np.bincount(np.searchsorted(edges, x), minlength=1000)).pvalue
    for shift in (0, 6, 12):
        yield stats.chisquare(np.bincount(z >> shift & 1023, minlength=1024)).pvalue
    within = np.floor(np.abs(x) % 1.0 * 64).astype(int)
    expected = np.diff(-np.exp(-np.arange(65) / 64)) / (1 - math.exp(-1))
    yield stats.chisquare(np.bincount(within, minlength=64), n * expected).pvalue
    for power, mean, variance in ((1, 0, 2), (2, 2, 20)):
        yield 2 * stats.norm.sf(abs(np.mean(x**power) - mean) * math.sqrt(n / variance))
    yield 2 * stats.norm.sf(abs(np.mean(x[1:] * x[:-1])) / 2 * math.sqrt(n - 1))
    yield stats.binomtest(int((x > 8).sum()), n, math.exp(-8) / 2).pvalue
    yield stats.binomtest(int((z < 0).sum()), n).pvalue


def test_the_law():
    assert min(battery(draw(SFC64(3), 400_000))) > 1e-8


@pytest.mark.verify
def test_the_law_at_ten_million_draws():
    assert min(battery(draw(SFC64(4), 10_000_000))) > 1e-8
