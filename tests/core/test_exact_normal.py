"""Exact normal noise: the tables are proven, every path is compared with a reference, and the law is measured."""

import math

import numpy as np
import pytest
from mpmath import erfc, exp, mpf, pi, quad, sqrt, workprec
from numba import njit
from numpy.random import SFC64, Generator
from randomgen import AESCounter
from scipy import stats

import exact_reference as reference
from clipsilon._core import bell_curve, exact_normal, normal_tables
from clipsilon._core.exact_normal import integer_normal
from clipsilon._core.limbs import distance as limb_distance
from clipsilon.engine import exact_noise

TABLES = ("ALIAS", "CURVE", "LOWER", "NEAR", "STARTS")


# The tables


def test_the_tables_are_proven():
    normal_tables.verify()


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("change", [1, -1])
@pytest.mark.parametrize("place", [2, 100, 700, 1010])
def test_the_proof_notices_a_change_of_one(name, change, place, monkeypatch):
    table = getattr(normal_tables, name).copy()
    table[place] += change * (1 << 10 if name == "ALIAS" else 1)
    monkeypatch.setattr(normal_tables, name, table)
    with pytest.raises(AssertionError, match="the sampler must not be used"):
        normal_tables.verify()


def test_the_tables_are_those_of_the_reference():
    assert normal_tables.LOWER.tolist() == reference.LOWER
    assert normal_tables.STARTS.tolist() == reference.STARTS
    assert reference.HEIGHT == bell_curve.HEIGHT


# The comparison in 64-bit integers, against mpmath


def boxes(count):
    rng = np.random.default_rng(3)
    ends = [(strip, place) for strip in range(0, 1024, 7) for place in (0, 1, 2**25 - 1)]
    return ends + [
        (int(s), int(p)) for s, p in zip(rng.integers(1024, size=count), rng.integers(2**25, size=count), strict=True)
    ]


def test_what_the_estimate_decides_is_true_for_the_whole_cell():
    worst = [0.0, 0.0]
    for strip, place in boxes(2000):
        found = int(exact_normal._estimate(strip, place))
        cell = strip * 2**25 + place
        with workprec(120):
            left, right = (reference.bell(mpf(k) / 2**32) for k in (cell, cell + 1))
            worst = [max(worst[0], float(left - found)), max(worst[1], float(found - right))]
            assert found - exact_normal._MARGIN + 1 <= right  # the largest height that is accepted
            assert left <= found + exact_normal._MARGIN  # the least that is rejected
    assert 1.0 < worst[0] < 2.84  # the bounds in docs/proofs.md
    assert 0.3 < worst[1] < 1.08


def test_the_estimate_is_that_of_the_reference():
    for strip, place in boxes(300):
        assert exact_normal._estimate(strip, place) == reference.estimate(strip, place)


def test_cells_have_the_probability_of_the_normal_law():
    """Add up what is accepted in a cell: the squeeze, the heights that are certain, and the open ones up to the curve."""
    margin = exact_normal._MARGIN
    for strip, place in [(0, 0), (0, 2**25 - 1), (5, 77), (127, 12345), (128, 0), (400, 2**24), (700, 5), (1000, 9)]:
        lower, end = (
            reference.LOWER[strip],
            reference.LOWER[strip] + reference.STARTS[strip + 1] - reference.STARTS[strip],
        )
        estimate = int(exact_normal._estimate(strip, place))
        first_open, first_rejected = (min(max(h, lower), end) for h in (estimate - margin + 1, estimate + margin))
        with workprec(300):
            left, right = (mpf(strip * 2**25 + place + k) / 2**32 for k in (0, 1))
            opened = quad(lambda x: min(max(reference.bell(x), first_open), first_rejected), [left, right]) * 2**32  # noqa: B023
            probability = opened / 2**25 / (bell_curve.HEIGHT * sqrt(pi / 2) * 128)  # the squeeze is part of it
            exact = erfc(left / sqrt(2)) - erfc(right / sqrt(2))  # of |N|
            assert abs(probability / exact - 1) < mpf(10) ** -30


# Every path, word by word


@njit
def drawn(bits, count):
    out = np.empty(count, np.int64)
    for i in range(count):
        out[i] = integer_normal(bits)
    return out


@njit
def under(bits, cell, height, known):
    return bell_curve.is_under_curve(bits, cell, height, known)


def test_compiled_interpreted_and_reference_draw_the_same():
    compiled = exact_noise.draw(Generator(SFC64(1)), 60_000)
    bits = SFC64(1)
    assert [integer_normal(bits) for _ in range(60_000)] == compiled.tolist()
    source = reference.Script([], SFC64(1))
    expected = [reference.normal(source, normal_tables.ALIAS) for _ in range(60_000)]
    assert expected == compiled.tolist()
    assert bits.random_raw() == source()  # the same number of words


def results(path, seed, *ways):
    """Return the next three draws and the number of words, for each way to draw."""
    found = []
    for take in ways:
        source = reference.Script(reference.PATHS[path], SFC64(seed))
        found.append((take(source), source.drawn))
    return found


def by_reference(source):
    return [reference.normal(source, normal_tables.ALIAS) for _ in range(3)]


def compiled(source):
    return drawn(source.bit_generator(), 3).tolist()


def interpreted(source):
    bits = source.bit_generator()
    return [integer_normal(bits) for _ in range(3)]


@pytest.mark.parametrize("path", reference.PATHS)
def test_rare_paths_are_those_of_the_reference(path):
    for seed in range(25):
        first, second = results(path, seed, compiled, by_reference)
        assert first == second


@pytest.mark.parametrize("path", [path for path in reference.PATHS if path != "tail, third block"])  # it takes a second
def test_rare_paths_are_those_of_the_reference_in_python(path):
    first, second = results(path, 0, interpreted, by_reference)
    assert first == second


@pytest.mark.parametrize("offset", [-200, 200])
def test_the_second_block_can_be_reached(offset):
    """Between 16 and 24, where no computer will ever go by chance: six limbs cannot tell the curve from zero."""
    cell = (2 << 35) + 7
    with workprec(800):
        curve = int(reference.bell(mpf(cell) / 2**32) * mpf(2) ** (31 * 12 - 31))
    y = reference.limbs(curve + offset, 12)
    words = [0, *[0] * 4, *y[2:6], *[0] * 6, *y[6:]]
    source = reference.Script(words, SFC64(0))
    assert under(source.bit_generator(), cell, 0, 2) == (offset < 0)
    assert source.drawn == len(words)


@pytest.mark.parametrize("offset", [-200, 200])
def test_digits_are_drawn_until_they_decide(offset):
    """y agrees with the curve in its first six limbs, so that twelve are needed."""
    cell = 2**32 + 5
    with workprec(800):
        curve = int(reference.bell(mpf(cell) / 2**32) * mpf(2) ** (31 * 12 - 31))
    y = reference.limbs(curve + offset, 12)
    words = [0, *[0] * 4, *y[1:6], *[0] * 6, *y[6:]]
    for take in (under, bell_curve.is_under_curve):
        source = reference.Script(words)
        assert take(source.bit_generator(), cell, y[0] >> 33, 1) == (offset < 0)
        assert source.drawn == len(words)


def test_bell_has_the_precision_that_is_claimed():
    rng = np.random.default_rng(5)
    for exponent in (3, 4, 5, 9):
        for size in (6, 12):
            x = rng.integers(2**31, size=size)
            value = sum(
                int(limb) << 31 * i for i, limb in enumerate(reversed(bell_curve._bell(x, exponent)[: size + 3]))
            )
            exact_x = sum(int(limb) << 31 * i for i, limb in enumerate(reversed(x)))
            with workprec(1500):
                true = exp(-((mpf(exact_x) / 2 ** (31 * size) * 2**exponent) ** 2) / 2) * bell_curve.HEIGHT / 2**31
                assert abs(mpf(value) / mpf(2) ** (31 * (size + 3)) - true) < mpf(2) ** (
                    -31 * (size + 3) + 8 + 2 * exponent
                )


def test_undecided_boxes_have_the_right_probability():
    """20,000 boxes that the curve cuts; false alarm: 6 deviations, 2e-9."""
    cell = 2**32
    with workprec(120):
        left = reference.bell(mpf(1))
        height = int(left)
        mean = quad(reference.bell, [mpf(1), mpf(1) + mpf(2) ** -32]) * 2**32 - height
    assert 0.1 < mean < 0.9
    bits = SFC64(8)
    hits = sum(under(bits, cell, height, 1) for _ in range(20_000))
    assert abs(hits - 20_000 * float(mean)) < 6 * math.sqrt(20_000 * float(mean * (1 - mean)))


# The law


def battery(z):
    """Return p-values of tests of the law of Z; none may be below 1e-8 (false alarm of all together: 1e-6)."""
    n, x = z.size, (z + 0.5) / 2.0**32
    edges = stats.norm.ppf(np.arange(1, 1000) / 1000)
    yield stats.chisquare(np.bincount(np.searchsorted(edges, x), minlength=1000)).pvalue
    strips = np.bincount(np.minimum(np.abs(x) * 128, 500).astype(int), minlength=501)
    tails = 2 * stats.norm.sf(np.arange(502) / 128)
    tails[-1] = 0.0
    yield stats.chisquare(strips, n * -np.diff(tails)).pvalue
    for shift in (0, 8, 15, 22):
        yield stats.chisquare(np.bincount(z >> shift & 1023, minlength=1024)).pvalue
    within = np.abs(x) * 128 % 1.0  # the density falls within a strip: the parts above the squeezes make it do so
    expected = sum(np.diff(stats.norm.cdf((k + np.arange(65) / 64) / 128)) for k in range(1100)) * 2
    yield stats.chisquare(np.bincount((within * 64).astype(int), minlength=64), n * expected / expected.sum()).pvalue
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        yield 2 * stats.norm.sf(abs(np.mean(x**power) - mean) * math.sqrt(n / variance))
    yield 2 * stats.norm.sf(abs(np.mean(x[1:] * x[:-1])) * math.sqrt(n - 1))
    for k in (3.0, 4.0, 4.5):
        yield stats.binomtest(int((x > k).sum()), n, stats.norm.sf(k)).pvalue
    yield stats.binomtest(int((z < 0).sum()), n).pvalue


def test_the_law():
    for bits in (SFC64(11), AESCounter(key=4)):
        values = list(battery(exact_noise.draw(Generator(bits), 400_000)))
        assert min(values) > 1e-8


@pytest.mark.verify
def test_the_law_at_ten_million_draws():
    assert min(battery(exact_noise.draw(Generator(SFC64(12)), 10_000_000))) > 1e-8


def test_negative_numbers_are_rounded_down():
    """Truncation would make 0 twice as likely as −1 and 1. Here with wide cells; false alarm: 6 deviations, 2e-9."""
    z = exact_noise.draw(Generator(SFC64(11)), 400_000) >> 28
    for value in range(-16, 16):
        p = stats.norm.cdf((value + 1) / 16) - stats.norm.cdf(value / 16)
        assert abs((z == value).sum() - z.size * p) < 6 * math.sqrt(z.size * p)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_distance_of_two_numbers_does_not_overflow(sign):
    """A difference of exactly 2^32 in the first two limbs, where one more shift would leave 64 bits."""
    larger, smaller = np.array([7, 5, 9, 0, 0, 0, 0]), np.array([5, 5, 1, 0, 0, 0, 0])
    a, b = (larger, smaller) if sign > 0 else (smaller, larger)
    compiled = njit(lambda a, b: limb_distance(a, b))
    for distance in (limb_distance, compiled):
        assert sign * distance(a, b[:6]) >= 2**32
