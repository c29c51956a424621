"""The exponential function of compiled loops, against mpmath."""

import mpmath
import numpy as np
from numba import njit

from clipsilon._core.exponential import exp


@njit(error_model="numpy")
def _all(x, out):
    for k in range(x.size):
        out[k] = exp(x[k])


def _compiled(x):
    out = np.empty_like(x)
    _all(x, out)
    return out


def _errors(x):
    """Return the error of each result, in units in the last place of the true value."""
    with mpmath.workprec(120):
        true = [mpmath.exp(mpmath.mpf(float(value))) for value in x]
        pairs = zip(_compiled(x), true, strict=True)
        return [
            float((mpmath.mpf(float(found)) - right) / mpmath.mpf(np.spacing(float(right)))) for found, right in pairs
        ]


def test_results_are_within_one_unit_in_the_last_place():
    rng = np.random.default_rng(0)
    halves = (np.arange(-40, 40) + 0.5) * np.log(2.0)  # where the remainder is largest
    x = np.concatenate([rng.uniform(-1, 1, 3000), rng.uniform(-745, 709.7, 3000), rng.normal(0, 1e-8, 200), halves])
    errors = np.abs(_errors(x))
    assert errors.max() <= 1.0
    assert errors.max() > 0.5  # not the correctly rounded result, so the comparison is with something else


def test_ends():
    x = np.array([0.0, -0.0, np.inf, -np.inf, 709.79, 800.0, -746.0, -1e300, 1e300, np.nan])
    np.testing.assert_array_equal(_compiled(x), [1, 1, np.inf, 0, np.inf, np.inf, 0, 0, np.inf, np.nan])


def test_a_number_has_the_same_bits_in_every_place():
    """Loops are compiled to vectors of several numbers and a remainder; what a record adds must not depend on it."""
    x = np.random.default_rng(1).normal(0, 3, 67)
    together = _compiled(x)
    assert [_compiled(x[k : k + 1])[0] for k in range(x.size)] == together.tolist()
