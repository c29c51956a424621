"""What is checked when the private model is called: its inputs, precision, state, gradients, and loss.

Precision and state are checked in every call. The others are checked until they have passed once with several records,
and then in one of `CHECK_EVERY` batches, chosen at random by the operating system's generator. A check that fails stops
the training before anything of the batch is released; if the training goes on all the same, nothing is certified.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clipsilon.torch.batch_state import STEP_FIRST
from clipsilon.torch.loss_check import (
    Scores,
    Tape,
    accept_reduction,
    check_inputs,
    check_reduction,
    check_rows,
    check_separable,
    leaves_of,
    map_leaves,
    plain,
)
from clipsilon.torch.optimizer import PrivateOptimizer
from clipsilon.torch.probe import Inputs, Probe, WithoutDropout, is_empty
from clipsilon.torch.refused_layers import refuse_gradient_hooks
from clipsilon.torch.state_check import CheckError, unchanged

CHECK_EVERY = 100
FIRST_RECORDS, RECORDS = 8, 3  # that a model is checked on, in the first batch and in later ones
_ATTEMPTS = 10  # of checking a model that cannot be checked
_LOSS_ATTEMPTS = 50  # of checking a loss, or the way from the loader, that cannot be checked
_SIZES = 3  # a number that is the size of so many different batches is no coincidence
COARSE = (
    "Nothing can be certified: some parameters have, or some layers compute in, fewer than 32 bits (autocast, half "
    "precision), and rounding to this precision is not covered; train in float32 or float64."
)


_EARLIER = (
    "The model must be trained on the batch that the private loader gave last, got records of an earlier one, which "
    "would take part more often than is accounted for; make one step of each batch."
)
_MOVED = (
    "With groups, the model must be called with the rows of the batch that the private loader gave last, all of them "
    "and in their order, since their people are known by their places, got others."
)


class Guard:
    """Checks the calls of one private model.

    Parameters
    ----------
    model : HooksModel or GhostModel
        The model.
    optimizer : PrivateOptimizer
        Its optimiser, whose state keeps faults.
    """

    def __init__(self, model: Any, optimizer: PrivateOptimizer):
        self._model, self._probe = model, Probe(model, optimizer.trained)
        self.state = optimizer.batch_state
        self._optimizer = optimizer
        self._checks_way = False  # whether it is checked where the rows of the batch go
        self._sizes: set[int] = set()  # of batches whose size was a number in the loss
        self._tape: Tape | None = None  # of the batch that the loader gave last, if it is followed
        self._last: Tape | None = None  # the same, also after the model was called
        self._rows_of_call: NDArray[np.int64] | None = None  # per person, in the batch of the last call
        self._has_records = True  # whether the last call was of records, and not of a placeholder
        self._calls = 0  # of the model
        self._is_called, self._is_passed = False, False  # whether it is being called, and gradients came without
        self.has_checked_inputs = self.has_checked_loss = self.has_checked_reduction = False
        self._checked_records = self._attempts = self._loss_attempts = self._way_attempts = 0

    def call(self, args: Any, kwargs: Any, answer: Callable[[Any, Any], Any]) -> Any:
        """Call the model and check it.

        Parameters
        ----------
        args, kwargs
            The arguments.
        answer : callable
            Calls the model with them.
        """
        original = args, kwargs
        given = [leaf for leaf in leaves_of(original) if isinstance(leaf, Tensor) and leaf.dim()]
        args, kwargs = map_leaves(_stripped, original)
        inputs = Inputs.of(args, kwargs)
        is_training = self._model._module.training and torch.is_grad_enabled() and inputs.records > 0
        if is_training and any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            self.state.add_fault(COARSE)
        if is_training:
            refuse_gradient_hooks(self._model._module)
        with self._faults_kept(), self._calling():
            if is_training:
                _require_current(given)
            tape = self._check_way(given, inputs.records) if is_training else None
            if is_training and self._is_due(inputs.records):
                self._attempts += 1
                self._checked_records = max(self._checked_records, self._probe_model(inputs))
            self._rows_of_call, self._has_records = self.state.rows_per_person, not is_empty((args, kwargs))
            self._calls += 1
            with unchanged(self._model._module):
                outputs = answer(args, kwargs)
        if not is_training:
            return _follow_other_call(original, answer, outputs)
        if COARSE not in self.state.faults and (tape or not self._is_loss_done or _is_drawn()):
            return (tape or Tape(inputs.records, self.check_loss)).follow(outputs)
        return outputs

    # The way from the loader to the model

    def follow_batch(self, batch: Any) -> Any:
        """Follow a batch of the loader until the model is called and its loss is known, if that is to be checked."""
        if self._tape is not None:
            self._tape.close()
        if self._last is not None:
            self._last.is_past = not self.state.fetches_ahead
        self._tape = self._last = None
        sizes = [len(leaf) for leaf in leaves_of(batch) if isinstance(leaf, Tensor) and leaf.dim()]
        is_due = (not self.has_checked_inputs and self._way_attempts < _LOSS_ATTEMPTS) or not self._is_loss_done
        self._checks_way = is_due or _is_drawn()
        if not sizes or sizes[0] < 2 or not (self._checks_way or self._optimizer.has_people):
            return batch
        self._way_attempts += self._checks_way
        self._tape = self._last = Tape(sizes[0], self.check_loss)
        return self._tape.follow_records(batch)

    def _check_way(self, given: list[Tensor], records: int) -> Tape | None:
        """Check what the model is called with; return the tape of the batch if its rows are those of the outputs.

        Parameters
        ----------
        given : list of Tensor
            The arguments, of which those from the loader are followed.
        records : int
            The number of records that the model is called with.
        """
        tape, self._tape = self._tape, None
        if self._optimizer.has_people and records > 1:
            _require_rows_of(tape, given, records)
        if tape is None or not tape.is_open:
            return None
        rows = [leaf for leaf in given if len(leaf) == records]
        followed = [leaf for leaf in rows if isinstance(leaf, Scores) and leaf.tape is tape]
        found = check_inputs(tape, followed) if followed and self._checks_way else []
        self.has_checked_inputs |= bool(found) and len(followed) == len(rows)
        if self._optimizer.has_people and any(record != row for record, row in found):
            raise CheckError(_MOVED)
        if found and tape.records == records and all(record == row for record, row in found):
            return tape
        tape.close()
        return None

    @property
    def _is_loss_done(self) -> bool:
        is_checked = self.has_checked_loss and self.has_checked_reduction
        return is_checked or self._loss_attempts >= _LOSS_ATTEMPTS

    @property
    def has_checked_model(self) -> bool:
        """Whether the model has passed a check, and all gradients came from calls of it."""
        return self._checked_records > 0 and not self._is_passed

    def _is_due(self, records: int) -> bool:
        is_open = self._checked_records < min(records, 2) and self._attempts < _ATTEMPTS
        return is_open or _is_drawn()

    def _probe_model(self, inputs: Inputs) -> int:
        """Check the model, unless it computes too coarsely for comparisons, when nothing is certified anyway."""
        try:
            most = RECORDS if self._checked_records > 1 else FIRST_RECORDS
            return 0 if COARSE in self.state.faults else self._probe.check(inputs, most)
        except CheckError:
            if COARSE in self.state.faults:
                return 0
            raise

    def check_loss(self, tape: Tape, loss: Tensor) -> None:
        """Check a loss that is about to be backpropagated, or the losses of all records."""
        if tape.has_size(loss):
            self._sizes.add(tape.records)
        self._loss_attempts += 1
        with self._faults_kept():
            if not self._model.is_ghost and not tape.others(loss):
                self.has_checked_loss |= check_separable(tape, loss) and tape.has_answers(loss)
            if tape.has_answers(loss) and (not tape.has_size(loss) or len(self._sizes) >= _SIZES):
                is_sound = self._is_sound(tape, loss)
                self.has_checked_reduction |= is_sound
                self.has_checked_loss |= is_sound
        tape.close()

    def _is_sound(self, tape: Tape, loss: Tensor) -> bool:
        """Check a loss; return whether that was possible."""
        reduction = self._model.loss_reduction
        others = tape.others(loss)
        if self._model.is_ghost:
            return not others and check_rows(tape, loss)
        seen = [self._probe.reductions.get(number, "unknown") for number in others]
        if not all(accept_reduction({verdict}, reduction) for verdict in seen):
            return False
        return tape.is_output(loss) or check_reduction(tape, loss, reduction)

    def see_gradient(self) -> None:
        """Note whose rows the gradients are of, whatever is drawn, or called, before the step.

        The rows of a second call are those of other records, also where other layers have them.
        """
        if self._optimizer.call not in (None, self._calls):
            raise RuntimeError(STEP_FIRST)
        self._optimizer.call = self._calls
        self._optimizer.rows_per_person, self._optimizer.has_records = self._rows_of_call, self._has_records

    def drop_gradients(self) -> None:
        """Drop the gradients of all records."""
        self._optimizer.zero_grad()

    def see_output(self, output: Tensor) -> None:
        """Note that a layer computes with too few bits, or that its gradient comes from a call past the model.

        In such a call rows may be those of other records than in the model's own call.
        """
        if output.is_floating_point() and output.dtype.itemsize < 4:
            self.state.add_fault(COARSE)
        if not self._is_called:
            output.register_hook(self._see_passed)

    def _see_passed(self, gradient: Tensor) -> None:
        self._is_passed = True

    @contextmanager
    def _calling(self) -> Iterator[None]:
        self._is_called = True
        try:
            yield
        finally:
            self._is_called = False

    @contextmanager
    def _faults_kept(self) -> Iterator[None]:
        try:
            yield
        except CheckError as error:
            self.state.add_fault(f"Nothing can be certified, since a check failed: {error}")
            raise


def _require_current(given: list[Tensor]) -> None:
    """Raise CheckError if records come from a batch before the last one, as far as batches are followed."""
    if any(isinstance(leaf, Scores) and leaf.tape is not None and leaf.tape.is_past for leaf in given):
        raise CheckError(_EARLIER)


def _require_rows_of(tape: Tape | None, given: list[Tensor], records: int) -> None:
    """Raise CheckError unless the model is called with the batch that was drawn last, of which each person is known."""
    followed = [leaf for leaf in given if isinstance(leaf, Scores) and leaf.tape is tape]
    if tape is None or tape.records != records or not followed:
        raise CheckError(_MOVED)


def _follow_other_call(given: tuple[Any, Any], answer: Callable[[Any, Any], Any], outputs: Any) -> Any:
    """Return the outputs of a call that trains nothing, which are recorded if the batch is: a loss may compare them.

    Parameters
    ----------
    given : tuple
        The arguments, of which those from the loader are followed.
    answer : callable
        Calls the model with them.
    outputs
        What it returned.
    """
    tapes = (leaf.tape for leaf in leaves_of(given) if isinstance(leaf, Scores))
    tape = next((tape for tape in tapes if tape is not None and tape.is_open), None)

    def repeat(args: Any, kwargs: Any) -> list[Any]:
        with WithoutDropout():
            return leaves_of(answer(args, kwargs))

    return outputs if tape is None else tape.follow_call(repeat, given, outputs)


def _stripped(leaf: Any) -> Any:
    return plain(leaf) if isinstance(leaf, Tensor) else leaf


def _is_drawn() -> bool:
    return secrets.randbelow(CHECK_EVERY) == 0
