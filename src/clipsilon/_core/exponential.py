"""The exponential function for compiled code, in operations that loops over records turn into vector instructions.

exp x = 2^n·exp r with n a whole number and |r| ≤ log(2)/2. The series of exp r ends after r^13/13!; what is left out is
below 10^−17. The result is within 1 unit in the last place (a test compares it with mpmath), which is what libraries
guarantee. Calls of theirs cannot be vectorised.
"""

from __future__ import annotations

from math import factorial

import numpy as np
from numba.extending import overload

from clipsilon._core.options import INLINE
from clipsilon._core.products import bits_of, from_bits, fused

_SHIFT = 1.5 * 2.0**52  # added to a small number, it leaves the nearest whole one in the last bits
_LOG2_E = 1.4426950408889634
# The first ends in so many zero bits that its product with n is exact.
_LOG_2, _LOG_2_REST = 0.6931471803691238, 1.9082149292705877e-10
_MOST, _LEAST = 710.0, -746.0  # beyond these the result is infinite, or 0
_BIAS, _FRACTION_BITS = 1023, 52
_A, _B, _C, _D, _E, _F, _G, _H, _I, _J, _K, _L = (1.0 / factorial(k) for k in range(2, 14))


def exp(x: float) -> float:
    """Return e to the power x; NaN is passed on."""
    return float(np.exp(x))


@overload(exp, jit_options=INLINE)
def _exp_of(x):  # type: ignore[no-untyped-def]
    return _exp_by_series


def _exp_by_series(x):  # type: ignore[no-untyped-def]
    x = _MOST if x > _MOST else x  # written so that NaN stays
    x = _LEAST if x < _LEAST else x
    shifted = fused(x, _LOG2_E, _SHIFT)
    n = shifted - _SHIFT
    r = fused(n, -_LOG_2_REST, fused(n, -_LOG_2, x))
    square = r * r
    fourth = square * square
    low = fused(fused(_D, r, _C), square, fused(_B, r, _A))
    middle = fused(fused(_H, r, _G), square, fused(_F, r, _E))
    high = fused(fused(_L, r, _K), square, fused(_J, r, _I))
    series = 1.0 + fused(square, fused(fused(high, fourth, middle), fourth, low), r)
    # 2^n by its bits, as a product of two powers, each of which is a normal number.
    halved = fused(n, 0.5, _SHIFT)
    half = bits_of(halved) - bits_of(_SHIFT)
    rest = bits_of(shifted) - bits_of(_SHIFT) - half
    first, second = (half + _BIAS) << _FRACTION_BITS, (rest + _BIAS) << _FRACTION_BITS
    return series * from_bits(first) * from_bits(second)
