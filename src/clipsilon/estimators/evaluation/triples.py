"""The area under the ROC curve alone, from three noisy sums over triples of people.

Of three people, drawn one by one, either all are of one class, or one is alone in their class. In the latter case the
positives' scores are above the negatives' (won), below them (lost), or the one alone is in between (split); ties count
half. With q the number of mixed triples in units of those that one person is in, the AUC is ½ + (won − lost)/2q, and
its variance over samples of people is (AUC·(1 − AUC) − split/2q)/q, whatever the scores' distribution (DeLong, DeLong
and Clarke-Pearson, 1988). A person changes won − lost + same/2, same/2 and split by 1 in all, so each gets Laplace
noise of scale 1/ε. docs/proofs.md has the proof, and why these three.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.exact_laplace import integer_laplace
from clipsilon.estimators.evaluation.histograms import MOST_PEOPLE
from clipsilon.estimators.evaluation.predictions import Scored
from clipsilon.estimators.evaluation.ratios import Array, Figure, deviations

Integers = NDArray[np.int64]
Objects = NDArray[np.object_]  # whole numbers of any size

_UNIT = 2**62 // MOST_PEOPLE  # of weight that a person's rows share
_ROUNDING = 4  # steps of the grid: one for each sum, and one for ε as a float
_CANDIDATES = np.linspace(0.0, 1.0, 4001)


class Triples(NamedTuple):
    """Noisy numbers of triples, in units of those that one person is in.

    Parameters
    ----------
    lead, same, split : float
        won − lost + same/2, same/2, and split.
    total : float
        Number of all triples, without noise.
    scale : float
        Of the Laplace noise in each of the first three.
    """

    lead: float
    same: float
    split: float
    total: float
    scale: float


def draw_triples(scored: Scored, rows_of: Integers, people: int, epsilon: float, rng: Generator) -> Triples:
    """Count triples of people, with noise.

    Parameters
    ----------
    scored : Scored
        The rows, of two classes.
    rows_of : array of int
        For each row, the number of rows of its person.
    people : int
        Number of people, which is public.
    epsilon : float
        At least 2^−16.
    rng : Generator
        Source of the noise.

    Returns
    -------
    Triples

    Formal guarantee
    ----------------
    The result is epsilon-differentially private if a person is zeroed out, and 2·epsilon if one is replaced.
    """
    steps = int(2**32 * Fraction(epsilon)) - _ROUNDING  # that stand for one person
    one, everybody = people**3 - (people - 1) ** 3, people**3
    sums = sum_triples(*weigh_cells(scored.cells, scored.outcomes, rows_of))
    whole = [steps * own // (2 * one * _UNIT**3) + integer_laplace(rng.bit_generator) for own in sums]
    lead, same, split = ((number + 0.5) / steps for number in whole)
    return Triples(lead, same, split, everybody / one, 2**32 / steps)


def weigh_cells(cells: Integers, outcomes: Integers, rows_of: Integers) -> tuple[Objects, Objects]:
    """Return the weight of negatives and of positives in each cell that occurs, in ascending order.

    Parameters
    ----------
    cells, outcomes : array of int
        The cell of each row's score, and 1 for the positive class, 0 for the other.
    rows_of : array of int
        For each row, the number of rows of its person; with k of them it weighs ⌊_UNIT/k⌋.

    Returns
    -------
    negatives, positives : array of whole numbers
    """
    places, inverse = np.unique(cells, return_inverse=True)
    weights = np.zeros((2, places.size), dtype=np.int64)
    np.add.at(weights, (outcomes, inverse), _UNIT // rows_of)
    negatives, positives = weights.astype(object)
    return negatives, positives


def sum_triples(negatives: Objects, positives: Objects) -> tuple[int, int, int]:
    """Return won − lost + same/2, same/2 and split, of triples with repetition and in any order, all times 2.

    Parameters
    ----------
    negatives, positives : array of whole numbers
        The weight of each class in each cell.
    """
    n0, n1 = int(negatives.sum()), int(positives.sum())
    below = 2 * np.cumsum(negatives) - negatives  # twice the negatives below each cell; those in it count half
    above = 2 * n1 - 2 * np.cumsum(positives) + positives
    ahead = 3 * (n0 + n1) * (int(positives @ below) - n0 * n1)
    split = 3 * (int(positives @ (below * (2 * n0 - below))) + int(negatives @ (above * (2 * n1 - above))))
    same = n0**3 + n1**3
    return 2 * ahead + same, same, split


def estimate_area(noisy: Triples) -> Figure:
    """Return the AUC with its interval: all values for which won − lost is as far from its mean as can be expected."""
    mixed = noisy.total - 2 * noisy.same
    ahead = noisy.lead - noisy.same
    if mixed <= 0:
        return Figure(float("nan"), 0.0, 1.0)
    value = float(np.clip(0.5 + ahead / (2 * mixed), 0.0, 1.0))
    expected = _largest_square(noisy, mixed, value)
    accepted = _CANDIDATES[(ahead - (2 * _CANDIDATES - 1) * mixed) ** 2 <= expected]
    low, high = (accepted[0], accepted[-1]) if accepted.size else (0.0, 1.0)
    return Figure(value, min(float(low), value), max(float(high), value))


def _largest_square(noisy: Triples, mixed: float, value: float) -> Array:
    """Return the largest square of won − lost − (2a − 1)·mixed to be expected if the AUC is a, for each candidate."""
    a, variance, z = _CANDIDATES, 2 * noisy.scale**2, deviations()
    noise = variance * (1 + (4 * a - 3) ** 2)
    # Of the largest variance at a, `split` is missing: as many triples as were split, or as large a fraction. The
    # former follows the skewness of the estimate too far, the latter not far enough: the mean of both is taken.
    largest = 4 * mixed * a * (1 - a)
    most_split = 2 * mixed * value * (1 - value)
    fraction = np.clip(1 - noisy.split / most_split, 0.0, 1.0) if most_split > 0 else 1.0
    sampling = (np.clip(largest - 2 * noisy.split, 0.0, largest) + fraction * largest) / 2
    # The variance of `sampling` itself, from the noise in `same` and in `split`: quantiles grow as Student's do.
    doubt = variance * ((8 * a * (1 - a)) ** 2 + 4)
    sampling = np.minimum(sampling + (z**2 + 1) / 4 * doubt / (sampling + noise), largest)
    # Laplace noise has heavier tails than normal noise (Cornish and Fisher, by the fourth cumulant).
    excess = 3 * variance**2 * (1 + (4 * a - 3) ** 4) / (sampling + noise) ** 2
    return np.asarray((z + (z**3 - 3 * z) / 24 * excess) ** 2 * (sampling + noise))
