"""Whole numbers drawn from bits are those of NumPy's generators."""

import numpy as np
import pytest
from numba import njit
from numpy.random import PCG64, SFC64, Generator
from randomgen import AESCounter

from clipsilon._core.words import integer_below

SIZES = [1, 2, 3, 10, 15_776, 2**20, 2**30 + 1, 3 * 2**29 + 7, 2**31 - 1, 2**31]


@njit
def _draw(bits, sizes, out):
    for k in range(sizes.size):
        out[k] = integer_below(bits, sizes[k])


@pytest.mark.parametrize("kind", [SFC64, PCG64, lambda seed: AESCounter(key=seed)], ids=["SFC64", "PCG64", "AES"])
def test_the_numbers_are_those_of_numpy(kind):
    """Sizes just above a power of two reject nearly every other draw, so that repetitions are compared, too."""
    sizes = np.tile(SIZES, 200)
    expected = Generator(kind(5))
    numbers = [int(expected.integers(size)) for size in sizes]
    compiled = np.empty(sizes.size, dtype=np.int64)
    _draw(Generator(kind(5)).bit_generator, sizes, compiled)
    assert compiled.tolist() == numbers
    plain = kind(5)
    assert [integer_below(plain, int(size)) for size in sizes] == numbers


@pytest.mark.parametrize("size", [2**31 + 1, 3 * 2**40, 2**62 + 1, 2**63 - 1])
def test_larger_numbers_are_bits_below_a_bound(size):
    """Nearly every other draw is above 2^31 + 1 and 2^62 + 1, so that repetitions are compared, too."""
    words, expected = AESCounter(key=6), []
    while len(expected) < 200:
        number = int(words.random_raw()) & (1 << (size - 1).bit_length()) - 1
        expected += [number] * (number < size)
    compiled = np.empty(200, dtype=np.int64)
    _draw(AESCounter(key=6), np.full(200, size), compiled)
    assert compiled.tolist() == expected
    plain = AESCounter(key=6)
    assert [integer_below(plain, size) for _ in range(200)] == expected
