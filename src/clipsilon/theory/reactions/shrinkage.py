"""How far clipping may have moved a fit, for a known fraction of clipped rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Shrinkage(NamedTuple):
    """How far clipping may have moved a fit, if all rows were clipped; less in proportion if fewer were.

    Parameters
    ----------
    entries : ndarray of shape (columns, d)
        By how much each entry of the matrix S may be off, in units of the norm of S.
    matrix : float
        By how much S as a whole may be off, in these units.
    strength : float
        The part of the strength that may be missing.
    """

    entries: Array
    matrix: float
    strength: float


def of_columns(models: Array, pulls: Array, shares: Array) -> Array:
    """Bound how far clipping moves each column of a slope Σ_i shares_i·m_i·pulls_iᵀ, m_i being the clipped means.

    Parameters
    ----------
    models : ndarray of shape (J, d)
        The models.
    pulls : ndarray of shape (J, k)
        By what a mean is multiplied for each column.
    shares : ndarray of shape (J,)
        The part of all people that is under each model.

    Returns
    -------
    ndarray of shape (k,)
        max_i Σ_j shares_j·‖u_i − u_j‖·|pulls_i − pulls_j| (docs/proofs.md, "Reactions from logs").
    """
    worst = np.zeros(pulls.shape[1])
    for i in range(len(models)):
        apart = np.linalg.norm(models - models[i], axis=1)
        worst = np.maximum(worst, (shares * apart) @ np.abs(pulls - pulls[i]))
    return worst


def of_strength(models: Array, shares: Array) -> float:
    """Return the same for the strength: 1 + max_i ‖u_i − ū‖²/Σ_j shares_j·‖u_j − ū‖², for models minus their mean ū."""
    squares = np.sum(models**2, axis=1)
    mean = float(shares @ squares)
    return 1.0 + float(squares.max()) / mean if mean > 0.0 else 0.0


def clipping_margins(shrinkage: Shrinkage, length: float, clipped: float) -> Array:
    """Return how far each entry of S may be from its estimate because of clipping.

    Parameters
    ----------
    shrinkage : Shrinkage
        How far it may be if all rows were clipped.
    length : float
        An upper bound on the norm of the estimate, up to chance.
    clipped : float
        An upper bound on the fraction of clipped rows.

    Returns
    -------
    ndarray of shape (columns, d)
        The margins; infinite if so many rows were clipped that S may have any length.
    """
    off = clipped * shrinkage.entries
    left = 1.0 - clipped * shrinkage.matrix
    longest = length / left if left > 0.0 else np.inf
    return np.multiply(off, longest, where=off > 0.0, out=np.zeros_like(off))  # 0·∞ is 0 here


def widen_strengths(low: Array, high: Array, missing: Array) -> tuple[Array, Array]:
    """Widen intervals of strengths away from 0, since a part of each strength may be missing.

    Parameters
    ----------
    low, high : ndarray of shape (classes,)
        The intervals of the strengths that are left after clipping.
    missing : ndarray of shape (classes,)
        The largest part of a strength that clipping may have removed; from 1 on, the strength may have any size.

    Returns
    -------
    low, high : ndarray of shape (classes,)
        The wider intervals.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(missing < 1.0, 1.0 / (1.0 - missing), np.inf)
        wide_low, wide_high = (np.where(end == 0.0, 0.0, end * factor) for end in (low, high))
    return np.minimum(low, wide_low), np.maximum(high, wide_high)
