"""The check of a loss: that it is the mean, or the sum, of one loss per record.

In a batch that is checked, the model's outputs are tensors that write down what is computed from them (`Scores`). When
the loss is backpropagated, its computation is repeated for some of the records, together and one by one: the loss of
all must be the mean, or the sum, of the single losses. This finds a wrong `loss_reduction`, and losses that mix
records, such as a mean over the tokens of all records, one with class weights, or a contrastive one. The gradient does
not depend on the recording.

A computation that cannot be repeated for fewer records is repeated with other records in the place of some: if the loss
is a sum over records, replacing some and replacing others change it independently (`check_separable`). In the same way,
replacing one record of a batch of the private loader may change one row only of what the model is called with
(`check_inputs`).
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.utils._pytree import tree_leaves, tree_map

from clipsilon.torch.state_check import CheckError

_SYSTEM = random.SystemRandom()
_MOST_RECORDS = 8  # that a loss is repeated for
_MOST_REPLACED = 16  # records of a batch that are replaced, one by one
_MOST_CALLS = 1000  # that are repeated for these
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
        self._outputs: list[Tensor] = []  # of the model, and records of the loader: one row per record
        self._answers: set[int] = set()  # those of the model, by `id`
        self._others: dict[int, int] = {}  # for outputs without rows, by `id`: their number
        self._kept: list[Tensor] = []  # so that no other tensor gets their `id`
        self._calls: list[_Call] = []
        self.is_open = True
        self.is_past = False  # whether the loader has given a later batch

    def follow(self, outputs: Any) -> Any:
        """Return the outputs of the model, which are recorded from now on."""
        numbers = itertools.count()

        def scores(leaf: Any) -> Any:
            number = next(numbers) if isinstance(leaf, Tensor) and leaf.is_floating_point() else -1
            if number < 0 or not leaf.requires_grad:
                return leaf
            followed = _as_scores(leaf, self)
            self._answers.add(id(followed))
            if leaf.dim() and len(leaf) == self.records:
                self._outputs.append(followed)
            else:
                self._others[id(followed)] = number
                self._kept.append(followed)
            return followed

        return map_leaves(scores, outputs)

    def follow_records(self, batch: Any) -> Any:
        """Return a batch of the loader, whose tensors of one row per record are recorded from now on."""

        def followed(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or isinstance(leaf, Scores) or not leaf.dim() or len(leaf) != self.records:
                return leaf
            self._outputs.append(_as_scores(leaf, self))
            return self._outputs[-1]

        return map_leaves(followed, batch)

    def follow_call(self, function: Callable[..., Any], args: Any, outputs: Any) -> Any:
        """Return the outputs of a function, whose call is recorded as a whole.

        Parameters
        ----------
        function : callable
            Computes a list of the outputs.
        args
            Its arguments.
        outputs
            What it returned.
        """
        followed = map_leaves(lambda leaf: _as_scores(leaf, self) if _is_new(leaf) else leaf, outputs)
        self.add(function, args, {}, leaves_of(followed))
        return followed

    def others(self, loss: Tensor) -> set[int]:
        """Return the numbers of the outputs without one row per record that the loss is computed from."""
        used = [loss, *(t for call in self._needed(loss) for t in _tensors((call.args, call.kwargs)))]
        return {self._others[id(t)] for t in used if id(t) in self._others}

    def has_answers(self, loss: Tensor) -> bool:
        """Return whether the loss is computed from outputs of the model, as far as is recorded."""
        used = [loss, *(t for call in self._needed(loss) for t in _tensors((call.args, call.kwargs)))]
        return any(id(t) in self._answers for t in used)

    def is_output(self, loss: Tensor) -> bool:
        """Return whether the loss is an output of the model itself, or this divided by 1, as trainers do."""
        call = next((call for call in self._calls if any(t is loss for t in call.results)), None)
        if call is not None and _is_division_by_one(call):
            return self.is_output(call.args[0])
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

        def part(t: Tensor) -> Tensor:
            read: Callable[..., Tensor] = readings.get(id(t), _default)
            return read(_plain(t), rows, self.records)

        return self._computed(needed, loss, values, part, len(rows))

    def replaced(self, result: Tensor, places: Sequence[int], others: Sequence[int]) -> Tensor:
        """Return a result as it would be with other records of the batch in some places.

        Parameters
        ----------
        result : Tensor
            What was computed from the records or the model's outputs.
        places, others : sequence of int
            The records to replace, and the records that take their places.
        """
        values = {}
        for t in self._outputs:
            values[id(t)] = _plain(t).clone()
            values[id(t)][list(places)] = _plain(t)[list(others)]
        return self._computed(self._needed(result), result, values, lambda t: _plain(t).clone(), self.records)

    def _computed(
        self,
        needed: list[_Call],
        result: Tensor,
        values: dict[int, Tensor],
        part: Callable[[Tensor], Tensor],
        size: int,
    ) -> Tensor:
        """Repeat calls with the same random numbers each time, and return one of their results.

        Parameters
        ----------
        needed : list of _Call
            The calls.
        result : Tensor
            The result that is wanted.
        values : dict
            The new values of the outputs, by `id`.
        part : callable
            From a tensor that comes from elsewhere to its value.
        size : int
            The number to use instead of the size of the batch.
        """
        values |= {id(t): torch.zeros_like(_plain(t)) for t in self._kept}  # which are compared elsewhere

        def value(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return size if self._is_size(leaf) else leaf
            if id(leaf) not in values:
                values[id(leaf)] = part(leaf)
            return values[id(leaf)]

        with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            torch.manual_seed(0)
            warnings.simplefilter("error")
            for call in needed:
                args, kwargs = tree_map(value, (call.args, call.kwargs))
                found = [t for t in tree_leaves(call.function(*args, **kwargs)) if isinstance(t, Tensor)]
                values |= {id(before): now for before, now in zip(call.results, found, strict=True)}
        return values[id(result)]

    def calls(self, result: Tensor) -> int:
        """Return the number of calls that a result depends on."""
        return len(self._needed(result))


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Map the leaves of a tree, in which data classes and distributions are nodes, too."""
    return tree_map(lambda leaf: _map_attributes(function, leaf) if _has_parts(leaf) else function(leaf), tree)


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of a tree, in which data classes and distributions are nodes, too."""
    found: list[Any] = []
    map_leaves(lambda leaf: found.append(leaf) or leaf, tree)  # type: ignore[func-returns-value]
    return found


def _has_parts(leaf: Any) -> bool:
    is_data = dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)
    return (is_data or isinstance(leaf, SimpleNamespace | Distribution)) and hasattr(leaf, "__dict__")


def _map_attributes(function: Callable[[Any], Any], whole: Any) -> Any:
    mapped = copy.copy(whole)
    mapped.__dict__.update({name: map_leaves(function, part) for name, part in vars(whole).items()})
    return mapped


def _is_division_by_one(call: _Call) -> bool:
    return getattr(call.function, "__name__", "") in ("div", "__truediv__") and call.args[1:] == (1,)


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


def check_separable(tape: Tape, loss: Tensor) -> bool:
    """Raise CheckError unless a loss is a sum of terms, each of which depends on one record.

    Of such a sum, replacing some records and replacing others changes as much together as one after the other.

    Parameters
    ----------
    tape : Tape
        What was computed from the outputs.
    loss : Tensor
        The loss of the batch, a number.

    Returns
    -------
    bool
        Whether the loss could be checked.
    """
    if tape.records < 2 or plain(loss).numel() != 1:
        return False
    return sum(_is_separable(tape, loss, others) for others in _replacements(tape.records)) > 0


def _replacements(records: int) -> Iterator[dict[int, int]]:
    """Yield, in random order, which record takes the place of each: another one, and twice the same for all."""
    for _ in range(2):
        rows = _SYSTEM.sample(range(records), records)
        yield dict(zip(rows, rows[1:] + rows[:1], strict=True))
        yield dict.fromkeys(rows, rows[0])


def _is_separable(tape: Tape, loss: Tensor, others: dict[int, int]) -> bool:
    """Raise CheckError if replacing some records changes what replacing others does; return whether both do."""
    rows, half = list(others), tape.records // 2
    parts = [[], [], rows[:half], rows[half:], rows]
    try:
        found = [float(tape.replaced(loss, part, [others[row] for row in part])) for part in parts]
    except Exception:  # of a function that cannot be repeated
        return False
    whole, again, *changed, all_changed = found
    room = torch.finfo(plain(loss).dtype).eps ** 0.6 * max(map(abs, found))
    if not math.isfinite(room) or whole != again or min(abs(one - whole) for one in changed) <= room:
        return False
    if abs(all_changed - sum(changed) + whole) > room:
        raise CheckError(_MIXED)
    return True


def check_inputs(tape: Tape, inputs: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Raise CheckError if a record of the loader's batch is in several rows of what the model is called with.

    Parameters
    ----------
    tape : Tape
        What was computed from the batch.
    inputs : sequence of Tensor
        The arguments that were computed from it.

    Returns
    -------
    list of (int, int)
        Records that were replaced, and the row of each; none if this could not be checked.
    """
    most = max(1, min(_MOST_REPLACED, _MOST_CALLS // max(1, sum(map(tape.calls, inputs)))))
    chosen = _SYSTEM.sample(range(tape.records), min(tape.records, most))
    halves = chosen[::2], [row for row in range(tape.records) if row not in chosen[::2]]
    try:
        rows = {record: _rows_of(tape, inputs, [record]) for record in chosen}
        is_mixed = any(len(_rows_of(tape, inputs, half)) > len(half) for half in halves if half)
    except Exception:  # of a function that cannot be repeated
        return []
    if is_mixed or max(map(len, rows.values())) > 1:
        raise CheckError(
            "Each record of a batch must be in one row of what the model is called with, and one record changes "
            "several rows, so that no clip bounds what it adds; leave out what mixes, repeats or compares the records "
            "of a batch, such as mixup, or statistics of the batch."
        )
    return [(record, row) for record, changed in rows.items() for row in changed]


def _rows_of(tape: Tape, inputs: Sequence[Tensor], records: Sequence[int]) -> set[int]:
    """Return the rows of the model's inputs that change where a record outside of these takes the place of each."""
    rest = [row for row in range(tape.records) if row not in records]
    others = [_SYSTEM.choice(rest)] * len(records)
    before = [tape.replaced(one, [], []) for one in inputs]
    after = [tape.replaced(one, records, others) for one in inputs]
    return set().union(*(_changed_rows(*pair) for pair in zip(before, after, strict=True)))


def _changed_rows(one: Tensor, other: Tensor) -> set[int]:
    if one.shape != other.shape:
        raise ValueError("rows cannot be compared")
    differs = (one != other) & ((one == one) | (other == other))
    if one.is_floating_point():
        differs &= ~((one - other).abs() <= torch.finfo(one.dtype).eps ** 0.6 * one.abs().max())
    return set(differs.reshape(len(one), -1).any(1).nonzero().flatten().tolist())


_MIXED = (
    "The loss must be the mean or the sum of one loss per record, and the loss of several records is neither; "
    "average over each record's own tokens first, and use reduction='sum' and loss_reduction='sum' where a mean "
    "divides by weights of all records."
)


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
    raise CheckError(_MIXED)


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


_MIXED_ROWS = (
    "criterion must give each record a loss that depends on this record alone, and the loss of a record changes with "
    "the other records; leave out what compares the records of a batch."
)


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
        found = [
            all(_is_part(one, whole, part, tape.records) for one, part in zip(alone, parts, strict=True))
            for whole, *alone in tape.losses(losses, [range(tape.records), *parts])
        ]
        if found and not any(found):
            raise CheckError(_MIXED_ROWS)
        if found:
            return True
    return _check_other_rows(tape, losses)


def _check_other_rows(tape: Tape, losses: Tensor) -> bool:
    """Raise CheckError if replacing half of the records changes the losses of the others."""
    try:
        before, again = tape.replaced(losses, [], []), tape.replaced(losses, [], [])
        is_repeatable = torch.equal(before, again)
        for others in _replacements(tape.records) if is_repeatable else ():
            rows, half = list(others), tape.records // 2
            after = tape.replaced(losses, rows[half:], [others[row] for row in rows[half:]])
            if not _near(*(_rows(each, rows[:half], tape.records) for each in (after, before))):
                raise CheckError(_MIXED_ROWS)
    except CheckError:
        raise
    except Exception:  # of a function that cannot be repeated
        return False
    return bool(is_repeatable)


def _is_part(losses: Tensor, whole: Tensor, part: Sequence[int], records: int) -> bool:
    """Return whether losses are those of a part of all records."""
    expected = _rows(whole, part, records)
    return losses.shape == expected.shape and _near(losses, expected)


def _near(one: Tensor, other: Tensor) -> bool:
    return not bool((one - other).abs().max() > 1e-4 * other.abs().max())
