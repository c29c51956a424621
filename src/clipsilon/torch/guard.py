"""What is checked when the private model is called: its precision, its state, its gradients, and its loss.

Precision and state are checked in every call. The others are checked until they have passed once with several records,
and then in one of `CHECK_EVERY` batches, chosen at random by the operating system's generator. A check that fails stops
the training before anything of the batch is released; if the training goes on all the same, nothing is certified.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from clipsilon.torch.loss_check import Tape, accept_reduction, check_reduction, check_rows
from clipsilon.torch.optimizer import PrivateOptimizer
from clipsilon.torch.probe import Inputs, Probe
from clipsilon.torch.state_check import CheckError, unchanged

CHECK_EVERY = 100
FIRST_RECORDS, RECORDS = 8, 3  # that a model is checked on, in the first batch and in later ones
_ATTEMPTS = 10  # of checking a model that cannot be checked
_SIZES = 3  # a number that is the size of so many different batches is no coincidence
COARSE = (
    "Nothing can be certified: some parameters have, or some layers compute in, fewer than 32 bits (autocast, half "
    "precision), and rounding to this precision is not covered; train in float32 or float64."
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
        self._sizes: set[int] = set()  # of batches whose size was a number in the loss
        self.has_checked_loss = False
        self._checked_records = self._attempts = 0

    def call(self, args: Any, kwargs: Any, answer: Callable[[Any, Any], Any]) -> Any:
        """Call the model and check it.

        Parameters
        ----------
        args, kwargs
            The arguments.
        answer : callable
            Calls the model with them.
        """
        inputs = Inputs.of(args, kwargs)
        is_training = self._model.training and torch.is_grad_enabled() and inputs.records > 0
        if is_training and any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            self.state.add_fault(COARSE)
        with self._faults_kept():
            if is_training and self._is_due(inputs.records):
                self._attempts += 1
                self._checked_records = max(self._checked_records, self._probe_model(inputs))
            with unchanged(self._model._module):
                outputs = answer(args, kwargs)
        if is_training and COARSE not in self.state.faults and (not self.has_checked_loss or _is_drawn()):
            return Tape(inputs.records, self.check_loss).follow(outputs)
        return outputs

    @property
    def has_checked_model(self) -> bool:
        """Whether the model has passed a check."""
        return self._checked_records > 0

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
        with self._faults_kept():
            if not tape.has_size(loss) or len(self._sizes) >= _SIZES:
                self.has_checked_loss |= self._is_sound(tape, loss)
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

    def see_output(self, output: Tensor) -> None:
        """Note that a layer computes with too few bits."""
        if output.is_floating_point() and output.dtype.itemsize < 4:
            self.state.add_fault(COARSE)

    @contextmanager
    def _faults_kept(self) -> Iterator[None]:
        try:
            yield
        except CheckError as error:
            self.state.add_fault(f"Nothing can be certified, since a check failed: {error}")
            raise


def _is_drawn() -> bool:
    return secrets.randbelow(CHECK_EVERY) == 0
