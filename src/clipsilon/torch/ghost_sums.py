"""Norms and clipped sums of layers, from inputs and gradients of outputs, with proven bounds on rounding.

A record's gradient of a layer y = x·W + b is Σ_p g_p ⊗ x_p over its rows p, and that of an embedding a sum of the g_p
of each index. Neither is formed for each record: norms are bounded from above, and sums over records are contracted, in
float64. A layer that is called several times has the rows of all calls. A weight that several layers share has the
gradients of all of them, whose inner products are a part of the norm. The proof is in docs/proofs.md, "Ghost clipping
in PyTorch".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from opacus.layers.dp_rnn import RNNLinear
from torch import Tensor, nn

from clipsilon.torch.exact_sums import REACH, SUM_TERMS

_ROUNDING = 2.0**-52  # twice the unit roundoff, so that it bounds terms of higher order, too
_LEAST_LENGTH = 2.0**-480  # added to lengths, for squares and products that underflow
_LEAST_CHUNK = 1024
_BLOCK = 2**19  # numbers in float64 that norms are computed from at a time
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
    def is_embedding(self) -> bool:
        """Whether the inputs are indices."""
        return isinstance(self.layer, nn.Embedding)

    @property
    def bias(self) -> Tensor | None:
        """The layer's bias, if it has one that is trained."""
        bias = getattr(self.layer, "bias", None)
        return bias if bias is not None and bias.requires_grad else None

    @property
    def trained(self) -> list[Tensor]:
        """The layer's parameters that are trained."""
        weight = [self.layer.weight] if self.layer.weight.requires_grad else []
        return weight if self.bias is None else [*weight, self.bias]

    def sizes(self, wanted: Sequence[Tensor] | None = None) -> dict[Tensor, Size]:
        """Return bounds on each record's gradient, for all parameters that are trained or for some of them."""
        wanted = self.trained if wanted is None else wanted
        parts = [self._sizes_of(records, wanted) for records in self._blocks()]
        return {p: Size(*map(torch.cat, zip(*(part[p] for part in parts), strict=True))) for p in wanted}

    def _sizes_of(self, records: slice, wanted: Sequence[Tensor]) -> dict[Tensor, Size]:
        x, g = self.x[records], self.g[records].double()
        lengths = _lengths(g)
        return {p: self._size(p, x, g, lengths) for p in wanted}

    def _blocks(self) -> Iterator[slice]:
        """Yield the records by so many that what is computed in float64 for them takes little memory."""
        rows = self.g.shape[1]
        inputs = 0 if self.is_embedding else self.x.shape[2]
        step = max(1, _BLOCK // max(1, rows * (inputs + self.g.shape[2] + 2 * rows)))
        for start in range(0, max(len(self.g), 1), step):
            yield slice(start, start + step)

    def _size(self, p: Tensor, x: Tensor, g: Tensor, lengths: Tensor) -> Size:
        if p is not self.layer.weight:
            return _vector_size(g, lengths)
        if self.is_embedding:
            return _table_size(_keys(x, len(p)), g, lengths)
        return _matrix_size(x.double(), g, lengths)

    def outer_factors(self) -> tuple[Tensor, Tensor]:
        """Return rows (left, right) of which the gradient of the weight is Σ_p left_p ⊗ right_p; not of embeddings."""
        x, g = self.x.double(), self.g.double()
        return (g, x) if isinstance(self.layer, nn.Linear) else (x, g)  # the W of nn.Linear has one row per output

    @property
    def terms(self) -> int:
        """The most numbers that are added up, one after the other, for an entry of a sum, with a few to spare."""
        rows = self.g.shape[0] * self.g.shape[1]
        return _chunk(rows) + len(list(_chunks(rows))) + 4

    def require_unchanged(self) -> None:
        """Refuse rows that were changed in place since they were taken."""
        if self.versions != (self.x._version, self.g._version):
            raise RuntimeError(_CHANGED.format(type(self.layer).__name__))

    def sums(self, factors: Tensor) -> dict[Tensor, Tensor]:
        """Return the sum of all records' gradients, each times its factor, for each parameter that is trained.

        Parameters
        ----------
        factors : Tensor
            One factor per record, in float64.
        """
        self.require_unchanged()
        found = {p: torch.zeros(p.shape, dtype=torch.float64, device=self.g.device) for p in self.trained}
        weights = factors.to(self.g.device).repeat_interleave(self.g.shape[1]).unsqueeze(1)
        g, x = self.g.flatten(0, 1), self.x.flatten(0, 1)
        if self.is_embedding:
            _add_by_index(found[self.layer.weight], x, g * weights)
            return found
        for rows in _chunks(len(g)):
            self._add_rows(found, x[rows], g[rows] * weights[rows])  # in float64, without a copy of g
        return found

    def _add_rows(self, totals: dict[Tensor, Tensor], x: Tensor, g: Tensor) -> None:
        if self.layer.weight in totals:
            is_transposed = isinstance(self.layer, nn.Linear)  # W has one row per output
            one, other = (g, x.double()) if is_transposed else (x.double(), g)
            totals[self.layer.weight] += one.T @ other  # not `addmm_`, which may add each term to the total
        if self.bias is not None:
            totals[self.bias] += g.sum(0)


def join_calls(calls: Sequence[LayerRows]) -> LayerRows:
    """Return the rows of all calls of a layer as those of one call.

    A call of a recurrent layer may have fewer records than others, at later times of packed sequences: the first ones.
    """
    if len(calls) == 1:
        return calls[0]
    for call in calls:
        call.require_unchanged()
    records = max(len(call.g) for call in calls)
    if type(calls[0].layer) is not RNNLinear:
        _require_equal_batches(calls)
    x = torch.cat([_pad(call.x, records) for call in calls], 1)
    g = torch.cat([_pad(call.g, records) for call in calls], 1)
    return LayerRows(calls[0].layer, x, g, (x._version, g._version))


def sizes_of(users: Mapping[Tensor, Sequence[LayerRows]]) -> dict[Tensor, Size]:
    """Return bounds on each record's gradient of the parameters of one layer.

    Parameters
    ----------
    users : mapping
        The layers that use each parameter: this one, and others that share the parameter with it.
    """
    found = {p: _shared_size(p, layers) for p, layers in users.items() if len(layers) > 1}
    alone = [p for p, layers in users.items() if len(layers) == 1]
    return {**found, **users[alone[0]][0].sizes(alone)} if alone else found


def sums_of(layers: list[LayerRows], factors: Mapping[Tensor, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter with the sum of all records' gradients, each times its factor, over the layers that use it.

    Parameters
    ----------
    layers : list of LayerRows
        The rows of each layer, which are taken out of the list, so that they can be forgotten one by one.
    factors : mapping
        One factor per record, in float64, for each parameter; those of a layer have the same factors.
    """
    waiting = _count_users(layers)
    begun: dict[Tensor, Tensor] = {}
    while layers:
        rows = layers.pop()
        for p, total in rows.sums(factors[rows.trained[0]]).items():
            waiting[p] -= 1
            begun[p] = begun.pop(p) + total if p in begun else total
            if not waiting[p]:
                yield p, begun.pop(p)


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


def has_too_many_terms(layers: Sequence[LayerRows]) -> bool:
    """Return whether more numbers are added up for an entry than the charge for rounding allows for."""
    users = _count_users(layers)
    return any(rows.terms + max(users[p] for p in rows.trained) - 1 > SUM_TERMS for rows in layers)


def _count_users(layers: Sequence[LayerRows]) -> Counter[Tensor]:
    """Return how many layers use each parameter."""
    return Counter(p for rows in layers for p in rows.trained)


def _require_equal_batches(calls: Sequence[LayerRows]) -> None:
    """Raise ValueError if rows of one number do not belong to one record in all calls."""
    found = sorted({len(call.g) for call in calls})
    if len(found) > 1:
        raise ValueError(f"a parameter was used with batches of {' and '.join(map(str, found))} rows")


def _pad(rows: Tensor, records: int) -> Tensor:
    """Return rows with zeros for the records that are missing at the end."""
    missing = records - len(rows)
    return torch.cat([rows, rows.new_zeros((missing, *rows.shape[1:]))]) if missing else rows


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


def _vector_size(g: Tensor, lengths: Tensor) -> Size:
    """Return bounds on Σ_p g_p, the gradient of a bias."""
    reach = lengths.sum(1)
    return Size(_enlarge(g.sum(1).norm(dim=1), reach, g.shape[1], g.shape[2]), reach)


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


def _table_size(keys: Tensor, g: Tensor, lengths: Tensor) -> Size:
    """Return bounds on the gradients of an embedding, which are the sums of rows of the same record and index."""
    records, rows, entries = g.shape
    found, places = keys.unique(return_inverse=True)
    places = places.flatten()
    owners = places.new_zeros(len(found)).index_copy_(0, places, _owners(keys))
    totals = g.new_zeros(len(found), entries).index_add_(0, places, g.flatten(0, 1)).square().sum(1)
    reaches = g.new_zeros(len(found)).index_add_(0, places, lengths.flatten()).square()
    squares, reach = (g.new_zeros(records).index_add_(0, owners, part) for part in (totals, reaches))
    return Size(_enlarge(squares.sqrt(), reach.sqrt(), rows, rows + entries), reach.sqrt())


def _shared_size(p: Tensor, layers: Sequence[LayerRows]) -> Size:
    """Return bounds on each record's gradient of a parameter that several layers use: rows of all layers, as one's."""
    _require_equal_batches(layers)
    if p.dim() == 1:
        g = torch.cat([rows.g.double() for rows in layers], 1)
        return _vector_size(g, _lengths(g))
    tables = [rows for rows in layers if rows.is_embedding]
    matrices = [rows.outer_factors() for rows in layers if not rows.is_embedding]
    if not tables:
        left, right = (torch.cat(parts, 1) for parts in zip(*matrices, strict=True))
        return _matrix_size(right, left, _lengths(left))
    indices, g = torch.cat([rows.x for rows in tables], 1), torch.cat([rows.g.double() for rows in tables], 1)
    table = _table_size(_keys(indices, len(p)), g, _lengths(g))
    if not matrices:
        return table
    left, right = (torch.cat(parts, 1) for parts in zip(*matrices, strict=True))
    inner = _inner_product(indices, g, left, right)
    return _tied_size(table, _matrix_size(right, left, _lengths(left)), inner, g.shape[2] + g.shape[1] + left.shape[1])


def _inner_product(indices: Tensor, g: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return ⟨E, D⟩ for each record, where E has in row k the sum of the g_q of index k, and D = Σ_p left_p ⊗ right_p.

    Parameters
    ----------
    indices, g : Tensor
        What E is made of.
    left, right : Tensor
        What D is made of.
    """
    picked = left.gather(2, indices.unsqueeze(1).expand(-1, left.shape[1], -1))
    return (picked * (right @ g.mT)).sum(2).sum(1)


def _tied_size(table: Size, matrix: Size, inner: Tensor, terms: int) -> Size:
    """Return bounds on the sum of two gradients of one weight, from bounds on both and their inner product.

    Parameters
    ----------
    table, matrix : Size
        Bounds on the two gradients.
    inner : Tensor
        Their inner products, as computed.
    terms : int
        How many numbers were added up for an inner product.
    """
    reach = table.reach + matrix.reach
    squares = (table.norms.square() + matrix.norms.square() + 2 * inner).clamp(min=0)
    hidden = (terms + 16) * _ROUNDING  # of 2·inner relative to 2·(reach of both), and of the sum of squares
    return Size((squares + hidden * reach.square()).sqrt() * (1 + 8 * _ROUNDING), reach * (1 + 2 * _ROUNDING))


def _keys(indices: Tensor, entries: int) -> Tensor:
    """Return numbers that identify both record and index, of a table with so many entries."""
    return _owners(indices).view_as(indices) * entries + indices


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
