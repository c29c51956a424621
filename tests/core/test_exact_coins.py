"""Exact runs of coins: the bounds of their proof, every path against a reference, and the law."""

from fractions import Fraction

import numpy as np
import pytest
from mpmath import floor, log, log1p, mpf, workprec
from numba import njit
from numpy.random import SFC64
from randomgen import AESCounter
from scipy import stats

import exact_reference as reference
from clipsilon._core import exact_coins
from clipsilon._core.exact_coins import LONGEST, draw_run, run_scale

PROBABILITIES = [
    *((1, 2), (1, 3), (500, 50_000), (5, 1000), (900, 1000), (999_999, 1_000_000), (1, 10**6), (3, 10**9)),
    *((0.01, 1.0), (0.3, 1.0), (0.29999999999999993, 1.0), (0.5, 1.0), (1.0 - 2.0**-53, 1.0), (1e-12, 1.0)),
]


def exact(numerator, denominator):
    return Fraction(numerator) / Fraction(denominator)


@njit
def runs(bits, numerator, denominator, count):
    out = np.empty(count, np.int64)
    scale = run_scale(numerator, denominator)
    for i in range(count):
        out[i] = draw_run(bits, numerator, denominator, scale)
    return out


def run(bits, numerator, denominator):
    return draw_run(bits, numerator, denominator, run_scale(numerator, denominator))


# The bounds in docs/proofs.md


def test_the_table_holds_logarithms():
    assert len(exact_coins.TABLE) == 16 * 128
    with workprec(200):
        for e in range(47, 63):
            rows = exact_coins.TABLE[(e + 1023) % 16 * 128 :][:128]
            for cell, (factor, logarithm) in enumerate(rows.tolist()):
                c = mpf(factor) * 2**e
                assert abs(logarithm - ((62 - e) * log(2) + log(c))) <= mpf(2) ** -50
                ends = [c * (1 + mpf(cell + side) / 128) - 1 for side in (0, 1)]
                assert max(abs(z) for z in ends) < mpf(2) ** -8
        assert abs(exact_coins.LOG_TWO - log(2)) <= mpf(2) ** -54


def heads():
    rng = np.random.default_rng(2)
    cells = [(128 + i) << (e - 7) for e in range(47, 62) for i in range(0, 128, 5)]
    edges = [head + offset for head in cells for offset in (0, 1, -1) if head + offset >= 2**47]
    return [*edges, 2**62 - 1, 2**62 - 2**9, *(int(2 ** rng.uniform(47, 62)) for _ in range(3000))]


def test_logarithms_are_right_to_42_bits():
    with workprec(120):
        errors = [abs(exact_coins._minus_log(head) - 62 * log(2) + log(mpf(head))) for head in heads()]
        assert mpf(2) ** -44 < max(errors) < mpf(2) ** -42


def test_scales_are_right_to_48_bits():
    rng = np.random.default_rng(3)
    rationals = [
        (int(b), int(m)) for b, m in zip(rng.integers(1, 1000, 500), rng.integers(1001, 2**50, 500), strict=True)
    ]
    close = [(m - b, m) for b, m in rationals]
    floats = [(float(2.0 ** -rng.uniform(0, 99)), 1.0) for _ in range(500)] + [
        (float(q), 1.0) for q in rng.random(2000)
    ]
    with workprec(200):
        for pair in [*PROBABILITIES, *rationals, *close, *floats]:
            true = -1 / log1p(-reference.fraction(exact(*pair)))
            assert abs(run_scale(*pair) / true - 1) < mpf(2) ** -48
    assert run_scale(7, 7) == run_scale(1.0, 1.0) == 0.0
    assert run_scale(5e-324, 1.0) == np.inf


def at_powers(q):
    """Return heads next to powers of 1 − q, at all distances."""
    with workprec(200):
        base = 1 - reference.fraction(q)
        longest = int(40 * log(2) / -log(base))
        exponents = sorted({1, 2, 3, *(max(1, longest >> k) for k in range(40)), longest})
        powers = [int(floor(base**g * 2**62)) for g in exponents]
    found = {
        p + sign * (1 << j) + side for p in powers for j in range(0, 50, 3) for sign in (-1, 1) for side in (0, -1)
    }
    return sorted(head for head in {*found, *powers} if 0 <= head < 2**62)


@pytest.mark.parametrize("pair", [pair for pair in PROBABILITIES if exact(*pair) > 1e-11], ids=str)
def test_what_one_word_decides_is_true_for_all_further_digits(pair):
    q, decided = exact(*pair), 0
    for head in at_powers(q)[:: 1 if q > 1e-5 else 7]:
        script = reference.Script([head * 4 + 3], SFC64(1))
        found = run(script.bit_generator(), *pair)
        if script.drawn == 1:
            decided += 1
            assert reference.runs_between(Fraction(head, 2**62), Fraction(head + 1, 2**62), q) == found
    assert decided > 10


# Every path, word by word


@pytest.mark.parametrize("pair", PROBABILITIES, ids=str)
def test_compiled_interpreted_and_reference_draw_the_same(pair):
    bits, source, q = SFC64(5), reference.Script([], SFC64(5)), exact(*pair)
    count = 500 if q > 1e-8 else 20
    compiled = runs(SFC64(5), *pair, count).tolist()
    assert [run(bits, *pair) for _ in range(count)] == compiled
    if q > 1e-8:  # for others, the package draws more digits than are needed in some percent of the draws
        assert [reference.coin_run(source, q) for _ in range(count)] == compiled
        assert bits.random_raw() == source()  # the same number of words


@pytest.mark.parametrize("pair", PROBABILITIES, ids=str)
def test_draws_next_to_a_power_are_those_of_the_reference(pair):
    q = exact(*pair)
    for i, head in enumerate(at_powers(q)[:: 3 if pair[0] != 500 else 1]):
        found = runs(reference.Script([head * 4], SFC64(i)).bit_generator(), *pair, 1)[0]
        assert found == min(reference.coin_run(reference.Script([head * 4], SFC64(i)), q), LONGEST)


@pytest.mark.parametrize("pair", [(500, 50_000), (0.01, 1.0), (2, 3), (1, 10**6)], ids=str)
@pytest.mark.parametrize("limbs", [3, 4, 5, 9, 10, 11])
@pytest.mark.parametrize("offset", [-1, 0, 1, 2])
def test_digits_are_drawn_until_they_decide(pair, limbs, offset):
    """U agrees with a power of 1 − q in its first digits; 4 further limbs are drawn at first, then 10 in all."""
    q, g = exact(*pair), 7
    digits = 62 + 31 * limbs
    u = int((1 - q) ** g * 2**digits) + offset
    words = [(u >> 31 * limbs) * 4, *((u >> 31 * i & 2**31 - 1) << 33 for i in reversed(range(limbs)))]
    scripts = [reference.Script(words, SFC64(9)) for _ in range(3)]
    expected = reference.coin_run(scripts[0], q)
    assert expected in (g - 1, g)
    assert run(scripts[1].bit_generator(), *pair) == expected
    assert runs(scripts[2].bit_generator(), *pair, 1)[0] == expected
    words_needed = next(n for n in (4, 10, 22) if limbs < n or (limbs == n and offset == 2)) + 1
    assert scripts[1].drawn == scripts[2].drawn == words_needed


# Limits


@pytest.mark.parametrize("head", [0, 1, 2, 3, 2**20, 2**46 + 1, 2**47 - 1, 2**47, 2**62 - 1])
@pytest.mark.parametrize("pair", [(1, 2), (500, 50_000), (999, 1000), (1, 10**9), (0.01, 1.0)], ids=str)
def test_extreme_heads(pair, head):
    source = reference.Script([head * 4], SFC64(3))
    found = [f(reference.Script([head * 4], SFC64(3)).bit_generator(), *pair) for f in (run, lambda *a: runs(*a, 1)[0])]
    assert found[0] == found[1] == reference.coin_run(source, exact(*pair))


@pytest.mark.parametrize("rate", [1e-19, 1e-40, 1e-300, 5e-324])
def test_very_small_probabilities(rate):
    found = [int(runs(SFC64(seed), rate, 1.0, 1)[0]) for seed in range(3)]
    expected = [
        min(reference.coin_run(reference.Script([], SFC64(seed)), Fraction(rate)), LONGEST) for seed in range(3)
    ]
    assert found == expected
    assert (min(found) == LONGEST) == (rate < 1e-19)


def test_certain_coins_use_no_words():
    bits = SFC64(1)
    assert runs(bits, 7, 7, 10).tolist() == runs(bits, 1.0, 1.0, 10).tolist() == [0] * 10
    assert bits.random_raw() == SFC64(1).random_raw()


# The law: 14 pairs and 2 generators, each test at 1e-8; false alarm of all together below 1e-6.


@pytest.mark.parametrize("pair", PROBABILITIES, ids=str)
@pytest.mark.parametrize("generator", [SFC64, lambda seed: AESCounter(key=seed)], ids=["SFC64", "AES"])
def test_runs_are_geometric(pair, generator):
    q = float(exact(*pair))
    count = 200_000 if q > 1e-8 else 20_000
    found = runs(generator(17), *pair, count)
    ends = np.unique(np.floor(np.log1p(-np.arange(1, 100) / 100) / np.log1p(-q)).astype(np.int64))  # of classes
    below = -np.expm1((ends + 1.0) * np.log1p(-q))  # P(G ≤ end)
    expected = count * np.diff(np.concatenate(([0.0], below, [1.0])))
    seen = np.bincount(np.searchsorted(ends, found), minlength=ends.size + 1)
    if expected[-1] < 20:  # q near 1
        expected, seen = ([*v[:-2], v[-2] + v[-1]] for v in (expected, seen))
    assert len(seen) == 1 or stats.chisquare(seen, expected).pvalue > 1e-8
    assert found.min() >= 0
