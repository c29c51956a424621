"""The exact samplers in plain Python, written from docs/proofs.md: Python integers, and mpmath for the curve.

They consume the same words as the package's samplers, so draws can be compared one by one.
"""

from bisect import bisect_right
from collections import deque
from ctypes import c_void_p
from fractions import Fraction

from mpmath import exp, floor, log, log1p, mp, mpf, workprec
from randomgen import UserBitGenerator

HEIGHT = 1705372967
ABOVE = 2**31


def bell(x):
    return HEIGHT * exp(-(x**2) / 2)


def tables():
    """Return the squeezes, the starts of what is above them, and the tail's start."""
    with workprec(200):
        ends = [int(floor(bell(mpf(i) / 128))) for i in range(1025)]
    excess = sum(ends[1:]) - (2**38 - ABOVE)
    lower = [ends[i + 1] - (1 if i < excess else 0) for i in range(1024)]
    starts = [0]
    for i in range(1024):
        starts.append(starts[-1] + ends[i] + 1 - lower[i])
    return lower, starts


LOWER, STARTS = tables()


class Script:
    """Words in the order in which they are to be drawn; random ones after the last."""

    def __init__(self, words, more=None):
        self.words, self.more, self.drawn = deque(int(w) for w in words), more, 0

    def __call__(self):
        self.drawn += 1
        return self.words.popleft() if self.words else int(self.more.random_raw())

    def bit_generator(self):
        """Return a bit generator that NumPy and Numba take."""
        return UserBitGenerator(lambda _: self(), state=c_void_p(1))  # the state is not used, but Numba needs one


def normal(word, alias):
    """Return ⌊2^32·N⌋ from a function that returns the next word; `alias` is the package's alias table."""
    while True:
        w = word()
        slot, threshold, place = w % 2**10, w // 2**10 % 2**28, w // 2**38 % 2**25
        sign = w // 2**63
        limit, other = divmod(int(alias[slot]), 2**10)
        strip = slot if threshold < limit else other
        cell = strip * 2**25 + place if strip < 1016 else above(word)
        if cell is not None:
            return -cell - 1 if sign else cell


def above(word):
    w = word()
    level, place = w // 2**33, w % 2**25
    if level >= STARTS[1024] + 2048:
        return None
    if level >= STARTS[1024]:
        return tail(word)
    strip = bisect_right(STARTS, level) - 1
    height, cell = LOWER[strip] + level - STARTS[strip], strip * 2**25 + place
    least, most = estimate_bounds(strip, place)
    if height + 1 <= least:
        return cell
    if height >= most:
        return None
    return cell if under(word, cell, height, 1) else None


def estimate(strip, place):
    """Return the 64-bit estimate: the series of exp(−t) with coefficients and terms rounded down."""
    with workprec(200):
        curve = int(floor(bell(mpf(strip) / 128)))
    t = place * (strip * 2**26 + place) // 2**33
    series, factorial = 0, 720
    for k in range(6, -1, -1):
        series = 2**32 // factorial - series * t // 2**32
        factorial //= max(k, 1)
    return curve * series // 2**32


def estimate_bounds(strip, place):
    """Return the heights below which a box is accepted and from which it is rejected without further digits."""
    return estimate(strip, place) - 3, estimate(strip, place) + 4


def tail(word):
    block = 1
    while (coin := word() // 2**33) < 2**30:
        if coin:
            return None
        block += 1
    cell = block * 2**35 + word() % 2**35
    return cell if under(word, cell, 0, block) else None


def under(word, cell, height, known):
    """Return whether a random point of the box lies under the curve, by mpmath."""
    exponent = max(3, cell.bit_length() - 32)
    x, y = cell * 2 ** (30 - exponent) + word() // 2 ** (34 + exponent), height * 2 ** (31 * (known - 1))
    x_limbs, y_limbs, size = 2, known, max(6, known + 2)
    while True:
        for _ in range(size - x_limbs):
            x = x * 2**31 + word() // 2**33
        for _ in range(size - y_limbs):
            y = y * 2**31 + word() // 2**33
        x_limbs = y_limbs = size
        with workprec(31 * size + 300):
            curve = int(floor(bell(mpf(x) / 2 ** (31 * size - exponent)) * mpf(2) ** (31 * size - 31)))
        if y + 2 * 2**exponent <= curve:
            return True
        if curve + 2 * 2**exponent <= y:
            return False
        size *= 2


def words_above(level, place=0):
    """Return two words: one that leads above the squeezes, and one of that level and place."""
    return [1020, level << 33 | place]


def limbs(number, count):
    """Return words whose limbs are the digits of a number."""
    return [(number >> 31 * i & 2**31 - 1) << 33 for i in reversed(range(count))]


def at_the_curve(strip, place, offset=0):
    height = estimate(strip, place) + offset
    return words_above(STARTS[strip] + height - LOWER[strip], place)


TAIL = STARTS[1024]
STOP, GO_ON, REJECT = 1 << 63, 0, 5 << 33
# Words that lead to the rare paths of the sampler
PATHS = {
    "nothing proposed": words_above(2**31 - 1),
    "end of the tail": words_above(TAIL + 2048),
    "just under the curve": at_the_curve(100, 1234, -4),
    "just over the curve": at_the_curve(100, 1234, 4),
    "undecided": at_the_curve(100, 1234),
    "undecided in the first cell": at_the_curve(0, 0),
    "undecided in the last cell": at_the_curve(1023, 2**25 - 1),
    "tail, rejected": [*words_above(TAIL), REJECT],
    "tail, over the curve": [*words_above(TAIL + 2047), STOP, 2**34],
    "tail, under the curve": [*words_above(TAIL), STOP, 12345, 0, *[1] * 4, *[0] * 4],
    "tail, at its start": [*words_above(TAIL), STOP, 0, 0, *[0] * 4, *[0] * 5],
    "tail, second block": [*words_above(TAIL), GO_ON, STOP, 7, 0, *[0] * 4, *[0] * 4],
    "tail, third block": [*words_above(TAIL), GO_ON, GO_ON, STOP, 7, 0, *[0] * 20],
    "negative": [1020 | 1 << 63, *at_the_curve(300, 99, -100)[1:]],
}


def coin_run(word, q):
    """Return the number of g ≥ 1 with U < (1 − q)^g for a Fraction q; 62 bits of U come first, then limbs."""
    u, digits = word() // 4, 62
    while (found := runs_between(Fraction(u, 2**digits), Fraction(u + 1, 2**digits), q)) is None:
        u, digits = u * 2**31 + word() // 2**33, digits + 31
    return found


def runs_between(low, high, q):
    """Return the run that all U in [low, high) have in common, or None."""
    if low == 0:
        return None
    with workprec(600):
        shortest, longest = (int(floor(log(fraction(u)) / log1p(-fraction(q)))) for u in (high, low))
    # Where U is a power itself, logarithms cannot tell on which side of the integer their quotient is.
    if longest < 10**4:
        shortest, longest = near(high, q, shortest, weak=True), near(low, q, longest, weak=False)
    return longest if shortest == longest else None


def near(u, q, estimate, weak):
    """Return the number of g ≥ 1 with u < (1 − q)^g, or with u ≤ (1 − q)^g if `weak`, next to an estimate."""
    fits = [g for g in range(max(estimate - 1, 1), estimate + 2) if u < (1 - q) ** g or (weak and u == (1 - q) ** g)]
    return max(fits, default=max(estimate - 2, 0))


def fraction(x):
    return mpf(x.numerator) / x.denominator


assert mp.prec <= 60  # precision is set locally, where it is needed
