"""Regress what people of one class sent on the models that they saw, for a matrix, its diagonal, or one number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from clipsilon.theory.reactions.shrinkage import Shrinkage, of_columns, of_strength

Array = NDArray[np.float64]

TRIED = 1e-6
"""A direction whose singular value is below this fraction of the largest was never tried."""


class Fit(NamedTuple):
    """The reaction of one class, in the columns that may move.

    Parameters
    ----------
    matrix : ndarray of shape (columns, d)
        S: what was sent is a − S·u up to chance, for the model u. Zero in directions that were never tried.
    errors : ndarray of shape (columns, d)
        The standard errors of its entries: infinite without a degree of freedom, and in columns where a direction that
        was never tried has a part; 0 for entries that are 0 by structure.
    unknown : ndarray of shape (k, d)
        The directions of the model that were never tried, one per row.
    singular_values : ndarray
        How far the models were spread, per direction.
    strength, strength_error : float
        The number s for which s·u fits best in the columns that may move, with its standard error.
    freedom, strength_freedom : int
        The degrees of freedom of the two.
    length_error : float
        A bound on the standard error of the matrix as a whole, in the directions that were tried.
    shrinkage : Shrinkage
        How far clipping may have moved the fit.
    """

    matrix: Array
    errors: Array
    unknown: Array
    singular_values: Array
    strength: float
    strength_error: float
    freedom: int
    strength_freedom: int
    length_error: float
    shrinkage: Shrinkage


def half_widths(errors: Array, freedom: int, confidence: float) -> Array:
    """Return the half-widths of confidence intervals (Student's t).

    Parameters
    ----------
    errors : ndarray
        Standard errors.
    freedom : int
        Their degrees of freedom.
    confidence : float
        The confidence of each interval.

    Returns
    -------
    ndarray
        Half-widths; infinite without a degree of freedom.
    """
    if freedom < 1:
        return np.full_like(errors, np.inf)
    return np.asarray(errors * stdtrit(freedom, 0.5 + 0.5 * confidence))


def fit_class(models: Array, means: Array, weights: Array, columns: NDArray[np.int64], structure: str) -> Fit:
    """Fit one class by weighted least squares.

    Parameters
    ----------
    models : ndarray of shape (J, d)
        The deployed models u_j, exact.
    means : ndarray of shape (J, columns)
        The means of what was sent; a row with a NaN is left out.
    weights : ndarray of shape (J,)
        The numbers of people: variances are taken to be in inverse proportion.
    columns : ndarray of int
        The columns that may move.
    structure : {"matrix", "columns", "strength"}
        What is fitted: a whole matrix, one number per column, or one number.

    Returns
    -------
    Fit
        The fit.
    """
    used = ~np.isnan(means).any(axis=1)
    models, means, weights = models[used], means[used], weights[used]
    if len(models) < 2:
        return _nothing(models.shape[1], columns)
    roots = np.sqrt(weights / weights.mean())[:, np.newaxis]
    x = roots * (models - np.average(models, axis=0, weights=weights))
    y = -roots * (means - np.average(means, axis=0, weights=weights))
    values, axes = np.linalg.svd(x, full_matrices=True)[1:]
    size = np.linalg.norm(models, axis=1).max(initial=1e-300)
    tried = np.zeros(models.shape[1], dtype=bool)
    tried[: values.size] = values > TRIED * max(values[0], size)
    own, centred, shares = x[:, columns], x / roots, weights / weights.sum()
    strength, error, freedom = _one_strength(own, y, TRIED * size)
    missing = of_strength(centred[:, columns], shares)
    if structure == "matrix":
        matrix, errors, length_error, free = _matrix(x, y, int(tried.sum()))
        errors[:, (np.abs(axes[~tried]) > TRIED).any(axis=0)] = np.inf
        off = of_columns(centred, _pulls(x, int(tried.sum())) / roots, shares)
        shrinkage = Shrinkage(np.tile(off, (columns.size, 1)), float(np.linalg.norm(off)), missing)
        return Fit(matrix, errors, axes[~tried], values, strength, error, free, freedom, length_error, shrinkage)
    spread = np.linalg.norm(own, axis=0)
    moved = spread > TRIED * max(spread.max(), size)
    if structure == "columns":
        entries, deviations, free = _by_column(own, y, moved)
        pulls = centred[:, columns] * (len(x) / np.where(moved, spread, np.inf) ** 2)
        off = of_columns(centred[:, columns], pulls, shares)
    else:
        moved = np.full(columns.size, bool(moved.any()))
        entries, deviations, free = np.full(columns.size, strength), np.full(columns.size, error), freedom
        off = np.full(columns.size, missing)
    matrix, errors, shrunk = np.zeros((3, columns.size, models.shape[1]))
    matrix[np.arange(columns.size), columns] = np.where(moved, entries, 0.0)
    errors[np.arange(columns.size), columns] = np.where(moved, deviations, np.inf)
    shrunk[np.arange(columns.size), columns] = off
    unknown = np.eye(models.shape[1])[columns[~moved]]
    length_error = float(deviations.max(initial=0.0, where=moved))
    shrinkage = Shrinkage(shrunk, float(off.max()), missing)
    return Fit(matrix, errors, unknown, values, strength, error, free, freedom, length_error, shrinkage)


def _matrix(x: Array, y: Array, rank: int) -> tuple[Array, Array, float, int]:
    """Return the matrix with the smallest norm, the errors of its entries and of it all, and the degrees of freedom."""
    u, values, axes = np.linalg.svd(x, full_matrices=False)
    u, values, axes = u[:, :rank], values[:rank], axes[:rank]
    matrix = (u.T @ y).T / values @ axes
    free = len(x) - 1 - rank
    if free < 1:
        return matrix, np.full_like(matrix, np.inf), np.inf, free
    variances = np.sum((y - x @ matrix.T) ** 2, axis=0) / free
    spread = np.sum((axes / values[:, np.newaxis]) ** 2, axis=0)
    return matrix, np.sqrt(np.outer(variances, spread)), float(np.sqrt(variances.sum() * np.sum(values**-2.0))), free


def _pulls(x: Array, rank: int) -> Array:
    """Return J·x·(xᵀx)⁺: by what J means, in the units of x, are multiplied in the matrix."""
    u, values, axes = np.linalg.svd(x, full_matrices=False)
    return np.asarray(len(x) * (u[:, :rank] / values[:rank]) @ axes[:rank])


def _by_column(x: Array, y: Array, moved: NDArray[np.bool_]) -> tuple[Array, Array, int]:
    """Return one strength per column, each from its own column of the models, with errors."""
    squares = np.where(moved, np.sum(x**2, axis=0), 1.0)
    entries = np.sum(x * y, axis=0) / squares
    free = len(x) - 2
    variances = np.sum((y - x * entries) ** 2, axis=0) / max(free, 1)
    errors = np.sqrt(variances / squares)
    return entries, errors if free > 0 else np.full_like(errors, np.inf), free


def _one_strength(x: Array, y: Array, least: float) -> tuple[float, float, int]:
    """Return the strength that all columns share, its error and its degrees of freedom.

    If models are spread by `least` or less, they were the same up to rounding, and nothing is known.

    Columns may be correlated: the error follows from the covariance of the residuals, which is estimated from at least
    as many degrees of freedom as are stated.
    """
    total, free = float(np.sum(x**2)), len(x) - 2
    if total <= least**2:
        return 0.0, np.inf, 0
    strength = float(np.sum(x * y)) / total
    if free < 1:
        return strength, np.inf, 0
    residuals = y - strength * x
    covariance = residuals.T @ residuals / free
    return strength, float(np.sqrt(max(np.sum((x @ covariance) * x), 0.0))) / total, free


def _nothing(dimension: int, columns: NDArray[np.int64]) -> Fit:
    """Return a fit that knows nothing: there are fewer than two deployments with enough people."""
    empty = np.zeros((columns.size, dimension))
    return Fit(
        empty,
        np.full_like(empty, np.inf),
        np.eye(dimension),
        np.zeros(0),
        0.0,
        np.inf,
        0,
        0,
        0.0,
        Shrinkage(empty, 0.0, 0.0),
    )
