"""The check of a loss: that it is the mean, or the sum, of one loss per record.

In a batch that is checked, the model's outputs are tensors that write down what is computed from them (`Scores`). When
the loss is backpropagated, its computation is repeated for some of the records, together and one by one: the loss of
all must be the mean, or the sum, of the single losses. This finds a wrong `loss_reduction`, and losses that mix
records, such as a mean over the tokens of all records, one with class weights, or a contrastive one. The gradient does
not depend on the recording. A computation that cannot be repeated for other records is left unchecked.
"""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from clipsilon.torch.state_check import CheckError

_SYSTEM = random.SystemRandom()
_MOST_RECORDS = 8  # that a loss is repeated for
_MOST_UNCERTAIN = 4  # tensors that may or may not have one row per record; each doubles the number of attempts


class _Call(NamedTuple):
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    results: list[Tensor]


class Tape:
    """Records what is computed from the outputs of a batch, until it is closed.

    Parameters
    ----------
    records : int
        Number of records in the batch.
    on_loss : callable
        Called with the tape and a loss that is about to be backpropagated.
    """

    def __init__(self, records: int, on_loss: Callable[[Tape, Tensor], None]):
        self.records, self.on_loss = records, on_loss
        self._outputs: list[Tensor] = []
        self._others: dict[int, int] = {}  # for outputs without rows, by `id`: their number
        self._kept: list[Tensor] = []  # so that no other tensor gets their `id`
        self._calls: list[_Call] = []
        self.is_open = True

    def follow(self, outputs: Any) -> Any:
        """Return the outputs of the model, which are recorded from now on."""
        numbers = itertools.count()

        def scores(leaf: Any) -> Any:
            number = next(numbers) if isinstance(leaf, Tensor) and leaf.is_floating_point() else -1
            if number < 0 or not leaf.requires_grad:
                return leaf
            followed = _as_scores(leaf, self)
            if leaf.dim() and len(leaf) == self.records:
                self._outputs.append(followed)
            else:
                self._others[id(followed)] = number
                self._kept.append(followed)
            return followed

        return tree_map(scores, outputs)

    def others(self, loss: Tensor) -> set[int]:
        """Return the numbers of the outputs without one row per record that the loss is computed from."""
        used = [loss, *(t for call in self._needed(loss) for t in _tensors((call.args, call.kwargs)))]
        return {self._others[id(t)] for t in used if id(t) in self._others}

    def is_output(self, loss: Tensor) -> bool:
        """Return whether the loss is an output of the model itself."""
        return id(loss) in self._others

    def add(self, function: Callable[..., Any], args: Any, kwargs: Any, results: Any) -> None:
        """Record a call.

        Parameters
        ----------
        function : callable
            What was called.
        args, kwargs
            Its arguments.
        results
            What it returned; calls that return no tensor are left out.
        """
        tensors = [t for t in tree_leaves(results) if isinstance(t, Tensor)]
        if tensors:
            self._calls.append(_Call(function, args, kwargs, tensors))

    def close(self) -> None:
        """Stop recording, and forget everything."""
        self.is_open = False
        self._outputs, self._calls, self._others, self._kept = [], [], {}, []

    def losses(self, loss: Tensor, parts: Sequence[Sequence[int]]) -> Iterator[list[Tensor]]:
        """Yield the loss of each part of the records, once for every reading of the computation that can be repeated.

        A tensor that comes from elsewhere, such as targets or class weights, may have one row per record or not, and a
        number from elsewhere may be a penalty.
        """
        needed = self._needed(loss)
        choices = [_readings(t, self.records) for t in self._strangers(needed)]
        for chosen in itertools.product(*choices[:_MOST_UNCERTAIN]):
            readings = dict(chosen)
            try:
                yield [self._repeat(needed, loss, rows, readings) for rows in parts]
            except Exception:  # sizes that do not fit in this reading
                continue

    def has_size(self, loss: Tensor) -> bool:
        """Return whether the loss is computed with a number that is the size of the batch, as if divided by it."""
        return any(self._is_size(leaf) for call in self._needed(loss) for leaf in tree_leaves((call.args, call.kwargs)))

    def _is_size(self, leaf: Any) -> bool:
        return type(leaf) in (int, float) and leaf == self.records

    def _needed(self, loss: Tensor) -> list[_Call]:
        """Return the calls that the loss depends on, in order."""
        wanted, needed = {id(loss)}, []
        for call in reversed(self._calls):
            if any(id(t) in wanted for t in call.results):
                needed.append(call)
                wanted |= {id(t) for t in _tensors((call.args, call.kwargs))}
        return needed[::-1]

    def _strangers(self, needed: list[_Call]) -> list[Tensor]:
        known = {id(t) for t in (*self._outputs, *self._kept)} | {id(t) for call in needed for t in call.results}
        found = {id(t): t for call in needed for t in _tensors((call.args, call.kwargs)) if id(t) not in known}
        uncertain = [t for t in found.values() if len(_readings(t, self.records)) > 1]
        return sorted(uncertain, key=lambda t: t.dim() == 0)

    def _repeat(
        self, needed: list[_Call], loss: Tensor, rows: Sequence[int], readings: dict[int, Callable[..., Tensor]]
    ) -> Tensor:
        """Return the loss of some of the records.

        Parameters
        ----------
        needed : list of _Call
            The calls that the loss depends on.
        loss : Tensor
            The loss of all records.
        rows : sequence of int
            The records.
        readings : dict
            For tensors from elsewhere, by `id`, which part of them belongs to some of the records.
        """
        values = {id(t): _rows(_plain(t), rows, self.records) for t in self._outputs}
        values |= {id(t): torch.zeros_like(_plain(t)) for t in self._kept}  # which are compared elsewhere

        def value(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return len(rows) if self._is_size(leaf) else leaf
            if id(leaf) not in values:
                part: Callable[..., Tensor] = readings.get(id(leaf), _default)
                values[id(leaf)] = part(_plain(leaf), rows, self.records)
            return values[id(leaf)]

        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")
            for call in needed:
                args, kwargs = tree_map(value, (call.args, call.kwargs))
                found = [t for t in tree_leaves(call.function(*args, **kwargs)) if isinstance(t, Tensor)]
                values |= {id(before): now for before, now in zip(call.results, found, strict=True)}
        return values[id(loss)]


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def _plain(t: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return t.detach().as_subclass(Tensor)


def _rows(t: Tensor, rows: Sequence[int], records: int) -> Tensor:
    """Return the rows of some of the records, each of which has the same number of them, in a copy."""
    return t.reshape(records, -1, *t.shape[1:])[list(rows)].flatten(0, 1)


def _whole(t: Tensor, rows: Sequence[int], records: int) -> Tensor:
    return t.clone()


def _nothing(t: Tensor, rows: Sequence[int], records: int) -> Tensor:
    return torch.zeros_like(t)


def _default(t: Tensor, rows: Sequence[int], records: int) -> Tensor:
    return _readings(t, records)[0][1](t, rows, records)


def _readings(t: Tensor, records: int) -> list[tuple[int, Callable[..., Tensor]]]:
    """Return what a tensor from elsewhere may hold: rows of records, or something that is the same for all."""
    if t.dim() == 0:
        return [(id(t), _whole), (id(t), _nothing)] if t.requires_grad else [(id(t), _whole)]
    if len(t) and len(t) % records == 0:
        return [(id(t), _rows), (id(t), _whole)]
    return [(id(t), _whole)]


class Scores(Tensor):
    """Outputs of a model, and what is computed from them, until the loss is known."""

    tape: Tape | None

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do what is asked, and record it.

        Parameters
        ----------
        func : callable
            The function of PyTorch.
        types
            Not used.
        args, kwargs
            Its arguments.
        """
        kwargs = kwargs or {}
        tapes = [getattr(t, "tape", None) for t in _tensors((args, kwargs)) if isinstance(t, Scores)]
        tape = next((tape for tape in tapes if tape is not None and tape.is_open), None)
        if tape is not None and func is Tensor.backward:
            tape.on_loss(tape, args[0])
        with torch._C.DisableTorchFunctionSubclass():
            results = func(*args, **kwargs)
        if tape is None or not tape.is_open or func in _GETTERS:
            return results
        results = tree_map(lambda t: _as_scores(t, tape) if _is_new(t) else t, results)
        tape.add(func, args, kwargs, results)
        return results

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Be saved as the plain tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(Tensor).__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """Be shown as the plain tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            return repr(self.as_subclass(Tensor))


_GETTERS = {Tensor.grad.__get__, Tensor.grad_fn.__get__, Tensor.data.__get__}  # type: ignore[attr-defined]


def _is_new(t: Any) -> bool:
    return isinstance(t, Tensor) and not isinstance(t, Scores)


def _as_scores(t: Tensor, tape: Tape) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        scores = t.as_subclass(Scores)
        scores.tape = tape  # type: ignore[attr-defined]
    return scores


def plain(t: Tensor) -> Tensor:
    """Return a tensor that is not recorded."""
    with torch._C.DisableTorchFunctionSubclass():
        return t.as_subclass(Tensor) if isinstance(t, Scores) else t


def check_reduction(tape: Tape, loss: Tensor, reduction: str) -> bool:
    """Raise CheckError unless a loss is the mean, or the sum, of one loss per record.

    Parameters
    ----------
    tape : Tape
        What was computed from the outputs.
    loss : Tensor
        The loss of the batch, a number.
    reduction : {"mean", "sum"}
        What it should be.

    Returns
    -------
    bool
        Whether the loss could be checked.
    """
    if tape.records < 2 or plain(loss).numel() != 1:
        return False
    return accept_reduction(_reductions(tape, loss), reduction)


def accept_reduction(seen: set[str], reduction: str) -> bool:
    """Return whether a reduction was seen; raise CheckError if only others were."""
    if reduction in seen or not seen & {"mean", "sum", "mixture"}:
        return reduction in seen
    if seen & {"mean", "sum"}:
        other = "sum" if reduction == "mean" else "mean"
        raise CheckError(
            f"loss_reduction must be {other!r}, as the loss is that of all records, got {reduction!r}: each record's "
            "gradient would depend on the size of its batch."
        )
    raise CheckError(
        "The loss must be the mean or the sum of one loss per record, and the loss of several records is neither; "
        "average over each record's own tokens first, and use reduction='sum' and loss_reduction='sum' where a mean "
        "divides by weights of all records."
    )


def _reductions(tape: Tape, loss: Tensor) -> set[str]:
    """Return how the loss follows from the losses of parts of the records, in every possible reading."""
    chosen = _SYSTEM.sample(range(tape.records), min(tape.records, _MOST_RECORDS))
    for parts in _partitions(chosen):
        sizes = [len(part) for part in parts]
        found = tape.losses(loss, [chosen, chosen, *parts])
        seen = {reduction_of(*[float(number) for number in numbers], sizes=sizes) for numbers in found}
        if seen:
            return seen
    return set()


def _partitions(chosen: list[int]) -> Iterator[list[list[int]]]:
    """Yield the records one by one and, for losses that cannot take single ones, in halves."""
    yield [[row] for row in chosen]
    if len(chosen) >= 4:
        yield [chosen[::2], chosen[1::2]]


def reduction_of(whole: float, again: float, *parts: float, sizes: list[int]) -> str:
    """Return how the loss of some records follows from the losses of the parts of them.

    Parameters
    ----------
    whole, again : float
        The loss of all, computed twice.
    *parts : float
        The losses of the parts.
    sizes : list of int
        Number of records in each part.

    Returns
    -------
    {"mean", "sum", "mixture", "unknown"}
    """
    room = 1e-4 * sum(map(abs, parts))
    if not abs(whole - again) <= 1e-4 * abs(whole):  # random, or not finite
        return "unknown"
    if not math.isfinite(room):
        return "mixture" if any(map(math.isfinite, parts)) else "unknown"
    mean = sum(size * part for size, part in zip(sizes, parts, strict=True)) / sum(sizes)
    is_mean, is_sum = abs(whole - mean) <= room / len(parts), abs(whole - sum(parts)) <= room
    if is_mean and is_sum:
        return "unknown"  # all are zero
    return "mean" if is_mean else "sum" if is_sum else "mixture"


def check_rows(tape: Tape, losses: Tensor) -> bool:
    """Raise CheckError unless each record's loss depends on this record alone.

    Parameters
    ----------
    tape : Tape
        What was computed from the outputs.
    losses : Tensor
        One or several losses per record.

    Returns
    -------
    bool
        Whether the losses could be checked.
    """
    if tape.records < 2 or plain(losses).dim() == 0 or len(losses) % tape.records:
        return False
    chosen = _SYSTEM.sample(range(tape.records), min(tape.records, _MOST_RECORDS))
    for parts in _partitions(chosen):
        expected = [_rows(_plain(losses), part, tape.records) for part in parts]
        found = [
            all(one.shape == other.shape and _near(one, other) for one, other in zip(alone, expected, strict=True))
            for alone in tape.losses(losses, parts)
        ]
        if found and not any(found):
            raise CheckError(
                "criterion must give each record a loss that depends on this record alone, and the loss of a record "
                "changes with the other records; leave out what compares the records of a batch."
            )
        if found:
            return True
    return False


def _near(one: Tensor, other: Tensor) -> bool:
    return not bool((one - other).abs().max() > 1e-4 * other.abs().max())
