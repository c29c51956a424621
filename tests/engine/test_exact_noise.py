"""Exact noise for arrays: bounds on the grid that hold as real numbers, and noise that is at least what was asked for."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import SFC64, Generator
from scipy import stats

from clipsilon.engine import exact_noise

numbers = st.floats(-1e300, 1e300) | st.floats(-10, 10) | st.floats(-1e-300, 1e-300)


@settings(deadline=None, max_examples=500)
@given(st.lists(numbers, min_size=1, max_size=8), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_bound_holds_in_real_numbers(entries, bound, scale):
    q = exact_noise.clip_to_grid(np.array(entries), bound, scale)
    grid = Fraction(exact_noise.grid_of(scale))
    assert sum(Fraction(int(k)) ** 2 for k in q) * grid**2 <= Fraction(bound) ** 2


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.floats(-1, 1), min_size=2, max_size=6).filter(lambda v: np.linalg.norm(v) > 0.1), st.floats(0.1, 10.0)
)
def test_the_bound_holds_at_its_edge_and_little_is_lost(entries, bound):
    direction = np.array(entries)
    vector = direction * (bound / np.linalg.norm(direction))
    grid = exact_noise.grid_of(bound)
    q = exact_noise.clip_to_grid(vector, bound, bound)
    assert sum(int(k) ** 2 for k in q) * Fraction(grid) ** 2 <= Fraction(bound) ** 2
    assert np.abs(q * grid - vector).max() <= grid + 1e-14 * bound


def test_a_vector_within_the_bound_is_truncated_toward_zero():
    q = exact_noise.clip_to_grid(np.array([0.3, -0.3, 0.0]), 1.0, 1.0)
    assert q.tolist() == [int(0.3 * 2**32), -int(0.3 * 2**32), 0]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=6), st.floats(1e-3, 1e3))
def test_a_row_of_a_table_is_clipped_as_it_is_alone(rows, bound):
    table = np.array(rows)
    alone = [exact_noise.clip_to_grid(row, bound, 1.0).tolist() for row in table]
    assert exact_noise.clip_to_grid(table, bound, 1.0).tolist() == alone


BAD = {
    "bound beyond the range": (
        (np.ones(2), 2.0**30, 1.0),
        "bound must be between 0 and 2\\*\\*29 times the scale 1.0, got",
    ),
    "not finite": ((np.array([np.nan]), 1.0, 1.0), "vectors must be finite"),
    "scale of zero": ((np.ones(2), 1.0, 0.0), "scale must be a positive number of ordinary size, got 0.0"),
    "denormal scale": ((np.ones(2), 0.0, 1e-310), "scale must be a positive number of ordinary size, got 1e-310"),
    "infinite scale": ((np.ones(2), 1.0, np.inf), "scale must be a positive number of ordinary size, got inf"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_input_is_refused(case):
    arguments, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        exact_noise.clip_to_grid(*arguments)


def test_a_release_is_a_function_of_the_sum_of_integers():
    q = np.array([0, 5, -(2**40), 2**62, np.iinfo(np.int64).min])
    z = exact_noise.draw(Generator(SFC64(2)), 5)
    sent = exact_noise.release(q, 3.0, Generator(SFC64(2)))
    expected = [(max(-(2**62), min(int(a), 2**62)) + int(b) + 0.5) * 3.0 / 2**32 for a, b in zip(q, z, strict=True)]
    assert sent.tolist() == expected


@pytest.mark.parametrize("std", [0.01, 0.3, 1.0, 7.7, 40.0, 1e6])
def test_whole_noise_has_the_stated_deviation(std):
    """False alarm: the variance of 200,000 draws by its normal approximation, 6.5 deviations, 1e-10 each.

    The variance is that of a rounded normal, by summation.
    """
    drawn = exact_noise.draw_whole(Generator(SFC64(6)), std, 200_000)
    assert drawn.dtype == np.int64
    if std < 1e3:
        k = np.arange(-int(10 * std) - 2, int(10 * std) + 3)
        weight = np.diff(stats.norm.cdf(np.append(k - 0.5, k[-1] + 0.5) / std))
        second, fourth = (float(np.sum(weight * k**power)) for power in (2.0, 4.0))
    else:
        second, fourth = std**2 + 1 / 12, 3 * std**4
    assert abs(np.mean(drawn.astype(float) ** 2) - second) <= 6.5 * np.sqrt((fourth - second**2) / drawn.size)


@pytest.mark.parametrize("std", [0.0, -1.0, 2.0**33, np.inf, np.nan])
def test_whole_noise_of_a_wrong_deviation_is_refused(std):
    with pytest.raises(ValueError, match="std must be above 0 and at most 2\\*\\*32, got"):
        exact_noise.draw_whole(Generator(SFC64(0)), std, 3)


def test_draws_continue_the_stream():
    rng = Generator(SFC64(9))
    parts = [exact_noise.draw(rng, size) for size in (3, 0, 1000)]
    assert np.concatenate(parts).tolist() == exact_noise.draw(Generator(SFC64(9)), 1003).tolist()
