"""Exact Laplace noise: ⌊2^32·X⌋ for a real X of density exp(−|x|)/2, in integer arithmetic alone.

As with `exact_normal`, an integer plus this noise is the Laplace mechanism on real numbers, rounded down afterwards.
Coins of probability exp(−p) come from comparisons of random integers (Canonne, Kamath and Steinke, 2020, Algorithm 1).
"""

from __future__ import annotations

from numba.extending import register_jitable
from numpy.random import BitGenerator

from clipsilon._core.options import CONTAINED
from clipsilon._core.words import LIMB, next_limb, next_word

_BITS = 32
_MASK = (1 << _BITS) - 1


@register_jitable(**CONTAINED)
def integer_laplace(bits: BitGenerator) -> int:
    """Return ⌊2^32·X⌋ for a real X of density exp(−|x|)/2.

    Parameters
    ----------
    bits : BitGenerator
        Source of uniform, independent 64-bit words: `rng.bit_generator`.

    Returns
    -------
    int
        An int64 in compiled code.

    Formal guarantee
    ----------------
    P(z) is the probability of [z, z + 1)·2^−32 under X for every integer z, exactly, if the words are uniform and
    independent.
    """
    fraction = next_word(bits) & _MASK
    while not _exponential_coin(bits, fraction):
        fraction = next_word(bits) & _MASK
    whole = 0
    while _exponential_coin(bits, 1 << _BITS):
        whole += 1
    # |X| is exponential: its integer part and its fraction are independent, with weights exp(−k) and exp(−f).
    return (whole << _BITS | fraction) ^ (next_word(bits) >> 63)  # ⌊−x⌋ = −⌊x⌋ − 1 unless x is an integer


@register_jitable(**CONTAINED)
def _exponential_coin(bits: BitGenerator, numerator: int) -> bool:
    """Return True with probability exp(−p), p = numerator·2^−32 ≤ 1.

    Coins of probability p/1, p/2, p/3, … are tossed until one fails. The first to fail is the k-th with probability
    p^(k−1)/(k−1)! − p^k/k!; over odd k this sums to exp(−p).
    """
    k = 1
    while next_word(bits) & _MASK < numerator and _one_in(bits, k):
        k += 1
    return k & 1 == 1


@register_jitable(**CONTAINED)
def _one_in(bits: BitGenerator, k: int) -> bool:
    """Return True with probability 1/k."""
    usable = (1 << LIMB) // k * k
    drawn = next_limb(bits)
    while drawn >= usable:
        drawn = next_limb(bits)
    return drawn % k == 0
