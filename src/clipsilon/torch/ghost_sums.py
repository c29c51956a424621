"""Norms and clipped sums of layers, from inputs and gradients of outputs, with proven bounds on rounding.

A record's gradient of a layer y = x·W + b is Σ_p g_p ⊗ x_p over its rows p, and that of an embedding a sum of the g_p
of each index. Neither is formed for each record: norms are bounded from above, and sums over records are contracted, in
float64. The proof is in docs/proofs.md, "Ghost clipping in PyTorch".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clipsilon.torch.exact_sums import REACH, SUM_TERMS

_ROUNDING = 2.0**-52  # twice the unit roundoff, so that it bounds terms of higher order, too
_LEAST_LENGTH = 2.0**-480  # added to lengths, for squares and products that underflow
_LEAST_CHUNK = 1024
_CHANGED = (
    "The input of {0}, or the gradient of its output, was changed in place after it was measured, so that no clip "
    "bounds it; compute without operations in place, or use hooks mode."
)


class Size(NamedTuple):
    """Bounds on each record's gradient of one parameter.

    Parameters
    ----------
    norms : Tensor
        Norms of the gradients, or more.
    reach : Tensor
        Norms of the sums of the absolute values of their terms, or more: what rounding is relative to.
    """

    norms: Tensor
    reach: Tensor


class LayerRows(NamedTuple):
    """What a layer has computed with for each record.

    Parameters
    ----------
    layer : nn.Module
        A layer y = x·W + b or x·Wᵀ + b, or an embedding.
    x : Tensor
        Its input, of shape (records, rows, entries); an embedding's indices, of shape (records, rows).
    g : Tensor
        The gradient of its output, of shape (records, rows, entries).
    versions : tuple of int
        PyTorch's counts of the changes that were made to both.
    """

    layer: nn.Module
    x: Tensor
    g: Tensor
    versions: tuple[int, int]

    @classmethod
    def of(cls, layer: nn.Module, x: Tensor, gradient: Tensor) -> LayerRows:
        """Return the rows of a layer's call.

        Parameters
        ----------
        layer : nn.Module
            The layer.
        x, gradient : Tensor
            Its input, and the gradient of its output; the first dimension of both is the record.
        """
        shape = (math.prod(gradient.shape[1:-1]),)
        g = gradient.detach().reshape(len(gradient), *shape, gradient.shape[-1])
        x = x.reshape(len(x), *shape) if isinstance(layer, nn.Embedding) else x.reshape(len(x), *shape, x.shape[-1])
        return cls(layer, x.detach(), g, (x._version, g._version))

    @property
    def bias(self) -> Tensor | None:
        """The layer's bias, if it has one that is trained."""
        bias = getattr(self.layer, "bias", None)
        return bias if bias is not None and bias.requires_grad else None

    def sizes(self) -> dict[Tensor, Size]:
        """Return bounds on each record's gradient, for each parameter that is trained."""
        g, found = self.g.double(), {}
        lengths = _lengths(g)
        if self.layer.weight.requires_grad:
            is_embedding = isinstance(self.layer, nn.Embedding)
            found[self.layer.weight] = (
                _embedding_size(self._keys(), g, lengths) if is_embedding else _matrix_size(self.x.double(), g, lengths)
            )
        if self.bias is not None:
            reach = lengths.sum(1)
            found[self.bias] = Size(_enlarge(g.sum(1).norm(dim=1), reach, g.shape[1], g.shape[2]), reach)
        return found

    @property
    def terms(self) -> int:
        """The most numbers that are added up, one after the other, for an entry of a sum, with a few to spare."""
        rows = self.g.shape[0] * self.g.shape[1]
        return _chunk(rows) + len(list(_chunks(rows))) + 4

    def sums(self, factors: Tensor) -> dict[Tensor, Tensor]:
        """Return the sum of all records' gradients, each times its factor, for each parameter that is trained.

        Parameters
        ----------
        factors : Tensor
            One factor per record, in float64.
        """
        if self.versions != (self.x._version, self.g._version):
            raise RuntimeError(_CHANGED.format(type(self.layer).__name__))
        found = {p: torch.zeros(p.shape, dtype=torch.float64, device=self.g.device) for p in self.trained}
        weights = factors.to(self.g.device).repeat_interleave(self.g.shape[1]).unsqueeze(1)
        g, x = self.g.flatten(0, 1), self.x.flatten(0, 1)
        if isinstance(self.layer, nn.Embedding):
            _add_by_index(found[self.layer.weight], x, g.double() * weights)
            return found
        for rows in _chunks(len(g)):
            self._add_rows(found, x[rows], g[rows].double() * weights[rows])
        return found

    def _keys(self) -> Tensor:
        """Return numbers that identify both record and index."""
        return _owners(self.x).view_as(self.x) * self.layer.num_embeddings + self.x

    @property
    def trained(self) -> list[Tensor]:
        """The layer's parameters that are trained."""
        weight = [self.layer.weight] if self.layer.weight.requires_grad else []
        return weight if self.bias is None else [*weight, self.bias]

    def _add_rows(self, totals: dict[Tensor, Tensor], x: Tensor, g: Tensor) -> None:
        if self.layer.weight in totals:
            is_transposed = isinstance(self.layer, nn.Linear)  # W has one row per output
            one, other = (g, x.double()) if is_transposed else (x.double(), g)
            totals[self.layer.weight] += one.T @ other  # not `addmm_`, which may add each term to the total
        if self.bias is not None:
            totals[self.bias] += g.sum(0)


def joint_norms(sizes: Sequence[Size], sampled: Tensor | None) -> Tensor:
    """Return the lengths by which records are clipped: not less than their norms, and than their reach over `REACH`.

    Parameters
    ----------
    sizes : sequence of Size
        Bounds for the parameters of layers that are contracted.
    sampled : Tensor, optional
        The norm of what was computed for each record, over all other parameters.

    Returns
    -------
    Tensor
        float64 on the CPU.
    """
    parts = [size.norms.cpu().square() for size in sizes] + ([] if sampled is None else [sampled.square()])
    norms = torch.stack(parts).sum(0).sqrt() * (1 + (len(parts) + 8) * _ROUNDING)
    if not sizes:
        return norms
    reach = torch.stack([size.reach.cpu().square() for size in sizes]).sum(0).sqrt()
    return torch.maximum(norms, reach / REACH)


def has_too_many_terms(rows: LayerRows) -> bool:
    """Return whether more numbers are added up than the charge for rounding allows for."""
    return rows.terms > SUM_TERMS


def _lengths(rows: Tensor) -> Tensor:
    return rows.norm(dim=-1) + _LEAST_LENGTH


def _enlarge(norms: Tensor, reach: Tensor, terms: int, entries: int) -> Tensor:
    """Return norms of computed sums, enlarged by what rounding may hide.

    Parameters
    ----------
    norms : Tensor
        Norms of the computed sums.
    reach : Tensor
        What the rounding of the sums is relative to.
    terms, entries : int
        How many numbers were added up for an entry, and how many entries the vectors have.
    """
    return norms * (1 + (entries + 8) * _ROUNDING) + reach * ((terms + 8) * _ROUNDING)


def _matrix_size(x: Tensor, g: Tensor, lengths: Tensor) -> Size:
    """Return bounds on Σ_p g_p ⊗ x_p: by lengths for one row, else by the smaller of two kinds of products."""
    (_, rows, inputs), outputs = x.shape, g.shape[2]
    reach = (_lengths(x) * lengths).sum(1)
    if rows == 1:
        return Size(reach * (1 + (inputs + outputs + 8) * _ROUNDING), reach)
    if inputs * outputs < rows * (inputs + outputs):
        return Size(_enlarge((g.mT @ x).flatten(1).norm(dim=1), reach, rows, inputs * outputs), reach)
    squares = ((x @ x.mT) * (g @ g.mT)).sum(2).sum(1).clamp(min=0)
    hidden = (inputs + outputs + 2 * rows + 8) * _ROUNDING
    return Size((squares + hidden * reach.square()).sqrt() * (1 + 8 * _ROUNDING), reach)


def _embedding_size(keys: Tensor, g: Tensor, lengths: Tensor) -> Size:
    """Return bounds on the gradients of an embedding, which are the sums of rows of the same record and index."""
    records, rows, entries = g.shape
    found, places = keys.unique(return_inverse=True)
    places = places.flatten()
    owners = places.new_zeros(len(found)).index_copy_(0, places, _owners(keys))
    totals = g.new_zeros(len(found), entries).index_add_(0, places, g.flatten(0, 1)).square().sum(1)
    reaches = g.new_zeros(len(found)).index_add_(0, places, lengths.flatten()).square()
    squares, reach = (g.new_zeros(records).index_add_(0, owners, part) for part in (totals, reaches))
    return Size(_enlarge(squares.sqrt(), reach.sqrt(), rows, rows + entries), reach.sqrt())


def _owners(keys: Tensor) -> Tensor:
    """Return the record of each row."""
    return torch.arange(len(keys), device=keys.device).repeat_interleave(keys.shape[1])


def _chunk(rows: int) -> int:
    """Return how many rows are summed at a time, so that few sums are added up one after the other."""
    return max(_LEAST_CHUNK, 1 << math.ceil(math.log2(max(rows, 1)) / 2))


def _chunks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, _chunk(rows)):
        yield slice(start, start + _chunk(rows))


def _add_by_index(total: Tensor, indices: Tensor, rows: Tensor) -> None:
    """Add rows to those of a matrix; first those of the same index in chunks, so that few are added one by one.

    Parameters
    ----------
    total : Tensor
        The matrix, modified in place.
    indices : Tensor
        Which of its rows each row is added to.
    rows : Tensor
        The rows.
    """
    indices, order = indices.sort()
    _, counts = indices.unique_consecutive(return_counts=True)
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    places = torch.arange(len(indices), device=indices.device) - starts  # within those of the same index
    is_first = places % _chunk(len(indices)) == 0
    parts = rows.new_zeros(int(is_first.sum()), rows.shape[1]).index_add_(0, is_first.cumsum(0) - 1, rows[order])
    total.index_add_(0, indices[is_first], parts)
