"""The noisy histogram: how far one person moves it, that it is exact, and that the noise is as stated."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from clipsilon.engine.streams import spawn
from clipsilon.estimators.evaluation import evaluate, histograms
from clipsilon.estimators.evaluation.histograms import draw_histogram, weighted_tree, with_total
from clipsilon.estimators.evaluation.people import count_people
from clipsilon.estimators.evaluation.ratios import Counts
from clipsilon.estimators.evaluation.tree import from_tree, level_weights, node_levels, to_tree
from clipsilon.privacy.accounting import gaussian

UNITS = [1, 7, 1000, 2**29 + 5, 2**36]


@pytest.mark.parametrize("levels", [0, 1, 3, 6])
def test_a_tree_can_be_inverted(levels):
    counts = np.random.default_rng(levels).integers(0, 50, size=(2, 2**levels))
    tree = to_tree(counts)
    assert tree.shape == counts.shape
    assert np.array_equal(from_tree(tree), counts)
    assert np.array_equal(tree[:, 0], counts.sum(axis=1))
    assert node_levels(levels).size == 2**levels


def test_the_order_of_a_tree():
    assert to_tree(np.array([1, 2, 4, 8])).tolist() == [15, 9, 1, 4]
    assert node_levels(2).tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("levels", [0, 3, 8])
def test_weights_stay_within_the_unit(unit, levels):
    weights = level_weights(levels, unit)
    assert len(weights) == levels + 1
    assert sum(weight**2 for weight in weights) <= unit**2
    assert all(weight <= weights[0] for weight in weights)
    if unit > 10**6:
        assert sum(weight**2 for weight in weights) > 0.999 * unit**2
        assert all(one >= other for one, other in pairwise(weights))


def tree_of(rows, unit, classes=2, levels=3):
    """Return the tree of rows (person, bin), in whole numbers."""
    people, bins = zip(*rows, strict=True) if rows else ((), ())
    _, rows_of = count_people(list(people), len(rows)) if rows else (0, np.zeros(0, dtype=np.int64))
    found = weighted_tree(np.array(bins, dtype=np.int64), rows_of, classes, level_weights(levels, unit))
    return [int(number) for number in found.ravel()]


def squared_distance(one, other):
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("unit", [1000, 2**29 + 5])
def test_all_rows_of_a_person_move_the_histogram_by_no_more_than_is_accounted_for(unit):
    """Remove each person, and replace each by others with any number of rows: in integers, without rounding."""
    rng = np.random.default_rng(unit)
    removed, replaced = [], []
    for _ in range(60):
        rows = [(person, int(rng.integers(16))) for person in range(4) for _ in range(int(rng.integers(1, 5)))]
        whole = tree_of(rows, unit)
        for person in range(4):
            rest = [row for row in rows if row[0] != person]
            removed.append(squared_distance(whole, tree_of(rest, unit)))
            for other in ([3], [12], [0, 8, 8], [int(b) for b in rng.integers(16, size=6)]):
                swapped = rest + [(person, each) for each in other]
                replaced.append(squared_distance(whole, tree_of(swapped, unit)))
    assert max(removed) <= unit**2
    assert max(replaced) <= 2 * unit**2
    assert max(removed) > 0.99 * unit**2  # the bounds are attained
    assert max(replaced) > 1.9 * unit**2


def test_every_pair_of_bins_is_within_the_bound_of_replacement():
    """All pairs of single rows, of all sizes of trees that are used, and of people with several rows."""
    for levels in range(9):
        weights = level_weights(levels, 2**20)
        size = 2**levels
        vectors = np.array([
            weighted_tree(np.array([b]), np.array([1]), 1, weights).ravel() for b in range(0, size, max(1, size // 16))
        ])  # fmt: skip
        inner = vectors @ vectors.T
        assert inner.min() >= 0
        assert np.diag(inner).max() <= 2**40


def test_a_person_without_groups_is_a_row():
    people, rows_of = count_people(None, 5)
    assert people == 5
    assert rows_of.tolist() == [1] * 5
    people, rows_of = count_people(["a", "b", "a", "a"], 4)
    assert people == 2
    assert rows_of.tolist() == [3, 1, 3, 3]


def test_counts_are_right_where_there_is_hardly_any_noise():
    bins, people = np.array([0, 3, 3, 5, 5, 5, 15]), ["a", "b", "c", "d", "d", "e", "f"]
    _, rows_of = count_people(people, 7)
    noisy = draw_histogram(bins, rows_of, 2, 3, 1e-9, spawn(0, 1)[0].noise)
    expected = np.zeros(16)
    expected[[0, 3, 5, 15]] = 1, 2, 2, 1
    assert abs(noisy.counts - expected).max() < 2  # noise of 1/16 person at least, times the levels
    assert np.sqrt(np.diag(noisy.covariance)).max() < 1


def test_the_noise_is_independent_normal_with_the_stated_covariance():
    """4,000 histograms of nobody, in the coordinates in which noise is independent. False alarm below 1e-7."""
    rng, std, runs = spawn(3, 1)[0].noise, 2.5, 4000
    nobody = np.zeros(0, dtype=np.int64)
    drawn = np.array([draw_histogram(nobody, nobody, 2, 2, std, rng).counts for _ in range(runs)])
    covariance = draw_histogram(nobody, nobody, 2, 2, std, rng).covariance
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), drawn.T)
    sizes = (whitened**2).sum(axis=1)
    low, high = stats.chi2.ppf([1e-9, 1 - 1e-9], runs)
    assert ((low < sizes) & (sizes < high)).all()
    assert abs(whitened.mean(axis=1)).max() < stats.norm.isf(1e-9) / math.sqrt(runs)
    correlations = np.corrcoef(whitened) - np.eye(8)
    assert abs(correlations).max() < stats.norm.isf(1e-10) / math.sqrt(runs)
    assert stats.kstest(whitened.ravel()[::4], "norm").pvalue > 1e-8


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_the_best_attack_finds_the_stated_mu_and_no_more(adjacency):
    """The most powerful test between two neighbours has the power of a shift by μ. False alarm below 1e-8."""
    mu, runs, levels = gaussian.largest_mu(8.0, 1e-5), 3000, 3
    std = evaluate._noise_std(mu, adjacency)
    rng = spawn(4, 1)[0].noise
    unit = min(int(2**32 / std), histograms._LARGEST_UNIT)
    weights = level_weights(levels, unit)
    scale = np.array(weights, float)[node_levels(levels)]
    one, other = ([2], [13]) if adjacency == "replace-one" else ([2], [])
    trees = []
    for bins in (one, other):
        rows = np.array(bins, dtype=np.int64)
        found = [draw_histogram(rows, np.ones_like(rows), 2, levels, std, rng).counts for _ in range(runs)]
        trees.append(to_tree(np.reshape(found, (runs, 2, -1))) * scale)  # where noise has equal deviations
    rows = [np.array(bins, dtype=np.int64) for bins in (one, other)]
    shift = np.subtract(*(weighted_tree(b, np.ones_like(b), 2, weights) for b in rows)).astype(float)
    attack = [(tree * shift).sum(axis=(1, 2)) / np.linalg.norm(shift) for tree in trees]
    found = (attack[0].mean() - attack[1].mean()) / np.concatenate([a - a.mean() for a in attack]).std()
    error = 6 * math.sqrt(2 / runs)
    assert found <= mu + error
    assert found >= mu - error


def test_a_known_total_is_kept():
    noisy = draw_histogram(np.arange(16), np.ones(16, dtype=np.int64), 2, 3, 1.0, spawn(5, 1)[0].noise)
    counts, covariance = with_total(noisy, 16)
    assert counts.sum() == pytest.approx(16)
    assert abs(covariance.sum(axis=1)).max() < 1e-9
    assert (np.diag(covariance) <= np.diag(noisy.covariance)).all()
    assert isinstance(with_total(noisy, 16), Counts)


def test_sums_stay_within_64_bits():
    assert histograms.MOST_PEOPLE * histograms._LARGEST_UNIT <= 2**62
    with pytest.raises(ValueError, match=r"X must have rows of 1 to 67108864 people, got 0\."):
        count_people(None, 0)
