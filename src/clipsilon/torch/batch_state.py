"""The state of a training batch, which the loader, the criterion and the optimiser share.

From a PyTorch batch to a step:

1. `PrivateBatchSampler` draws the records of a batch and reports their number: `draw`. Opacus's `BatchMemoryManager`
   may split the batch into pieces and announces, for each, whether others follow: `announce`.
2. The private model's forward pass keeps the input of every layer. Nothing changes here.
3. The backward pass leaves each record's gradient (hooks) or a bound on it (ghost clipping) on the parameters. Clipped
   gradients are then added to the sums of the batch, by the optimiser's `step` (hooks) or by `backward`
   of the criterion's loss (ghost clipping): `adding`, which leads to `SUMMED`.
4. `optimizer.step()` ends the piece: `end_piece`, which leads to `PARTIAL`. If other pieces follow, go back to 2.
5. Otherwise the step is compared with the batch that was drawn, and counted: `count_step`. Then the sums become the
   noisy update: `releasing`, which leads back to `BETWEEN_STEPS`.

An error during `adding` or `releasing` leaves sums that belong to no batch, and one during `checking` a model of which
nothing may be added. The phase is then `BROKEN`, which allows no transition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

STEP_FIRST = (
    "optimizer.step() must follow every backward pass: a record may be in several of the batches that would be added "
    "up, so that together they are no batch whose privacy is known. To accumulate gradients over k batches of b "
    "records, give the DataLoader batch_size=k*b and let Opacus split its batches: "
    "`from opacus.utils.batch_memory_manager import BatchMemoryManager` and "
    "`with BatchMemoryManager(data_loader=loader, max_physical_batch_size=b, optimizer=optimizer) as loader:`, with "
    "optimizer.step() and optimizer.zero_grad() after every backward pass."
)
_BACKWARD_FIRST = "A backward pass of the private criterion's loss must precede optimizer.step()."
_STEP_BEFORE_ZERO_GRAD = "optimizer.step() must come before optimizer.zero_grad(): the error has kept the batch."
_INTERRUPTED = (
    "A step was interrupted, and its sums are incomplete: call make_private on a new engine and load a checkpoint."
)
_PASS_LEFT = "A pass was left within a batch, with pieces to come: a batch must be finished."
_PIECES = (
    "optimizer.step() must follow every piece of a batch, and every piece of a batch must come before the next one."
)
_PLANNED_STEPS = (
    "The {} steps that noise was planned for, or a budget file charged with, have been taken: for more, give "
    "make_private more epochs."
)
_LEFT_OUT = (
    "With correlated noise a step must be made of every batch, in order, and the last batch was left out: iterate the "
    "loader anew, which gives it once more."
)
_WITHIN_BATCH = "A state can be saved or loaded between steps only, not within a batch."
_PASS_ENDED = "A pass cannot go on after another one was begun, or a checkpoint was loaded: iterate the loader anew."
_ROWS = (
    "A step must have one row per record of one batch, since each row is clipped alone, got {} rows where {} records "
    "were drawn; with workers, take a step for every batch."
)


class Phase(Enum):
    """How far the sums of the current batch have come."""

    BETWEEN_STEPS = "no piece of a batch has been added"
    ADDING = "a piece is being added"
    SUMMED = "a piece has been added, and its optimizer.step() is due"
    PARTIAL = "optimizer.step() was called for every piece so far, and the update has not been released"
    RELEASING = "the sums are being turned into the update"
    BROKEN = "an error interrupted ADDING or RELEASING"


_INCOMPLETE = (Phase.ADDING, Phase.RELEASING, Phase.BROKEN)


@dataclass(eq=False)
class Pass:
    """The position in one pass over the data.

    Attributes
    ----------
    drawn : int
        Batches of this pass that were drawn. With workers, draws are ahead of the steps.
    taken : int
        Batches of this pass up to the last one that a step was made of.
    is_counted : bool
        Whether the pass is one of `BatchState.passes`.
    """

    drawn: int = 0
    taken: int = 0
    is_counted: bool = False


class BatchState:
    """The phase of the current batch, and what was drawn and counted so far.

    Parameters
    ----------
    fetches_ahead : bool, default False
        Whether the loader has workers, which draw batches ahead of the steps. Without them, each step is made of the
        batch that was drawn last.
    is_ordered : bool, default False
        Whether a step must be made of every batch, in order; not with workers.

    Attributes
    ----------
    phase : Phase
        How far the sums of the current batch have come.
    rows : int
        Rows that were clipped, one by one, in the pieces of the current batch so far.
    largest_step : int
        Rows of the largest step so far, without those before a checkpoint.
    steps : int
        Steps counted so far.
    passes : int
        Passes counted so far: those with a step; with workers, those that were begun.
    current : Pass
        The pass that may go on: the last one that was begun.
    is_foreign : bool
        Whether a step was made without a batch of the private loader, so that another loader is in use.
    faults : list of str
        Why nothing can be certified, such as checks that failed.
    most_steps, most_passes : int or None
        The steps and passes that were planned, by a budget file or for correlated noise; None without. Passes of a
        loader with workers count when they begin.
    """

    def __init__(self, *, fetches_ahead: bool = False, is_ordered: bool = False):
        self.fetches_ahead, self.is_ordered = fetches_ahead, is_ordered
        self.phase = Phase.BETWEEN_STEPS
        self.rows = self.largest_step = self.steps = self.passes = 0
        self.current = Pass()
        self.is_foreign = False
        self.faults: list[str] = []
        self.most_steps: int | None = None
        self.most_passes: int | None = None
        self._sizes: deque[int] = deque()  # of the batches that the next steps may be made of, in order
        self.rows_per_person: NDArray[np.int64] | None = None  # in the batch that was drawn last, if records are people
        self._pieces: deque[bool] = deque()  # for each announced piece, whether others follow

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copies: two trainings would share their noise."""
        raise TypeError(
            "A private training cannot be copied or pickled: use optimizer.state_dict(), or save_checkpoint of the "
            "engine."
        )

    def add_fault(self, reason: str) -> None:
        """Keep a reason why nothing can be certified, for the rest of the training."""
        if reason not in self.faults:
            self.faults.append(reason)

    def _require(self, allowed: tuple[Phase, ...], message: str) -> None:
        if self.phase in _INCOMPLETE:
            raise RuntimeError(_INTERRUPTED)
        if self.phase not in allowed:
            raise RuntimeError(message)

    # The loader

    def begin_pass(self, skip: int = 0) -> Pass:
        """Begin a pass, after `skip` batches that were taken before a checkpoint; the last pass must not go on."""
        self._require((Phase.BETWEEN_STEPS,), _PASS_LEFT)
        self._pieces.clear()
        self._sizes.clear()
        self.current = Pass(skip, skip, is_counted=skip > 0)
        if self.fetches_ahead:  # a step may be made of any batch that was fetched, including those of the last pass
            self._count_pass()
        return self.current

    def draw(self, records: int, rows_per_person: NDArray[np.int64] | None = None) -> None:
        """Record that the next batch of the current pass has this number of records.

        Without workers, the last batch must have been finished or left out as a whole: announcements of pieces would
        otherwise apply to pieces of another batch. If records are people, `rows_per_person` are their numbers of rows.
        """
        self.rows_per_person = rows_per_person
        if self.is_ordered and self.current.drawn != self.current.taken:
            raise RuntimeError(_LEFT_OUT)
        if not self.fetches_ahead:
            is_accumulated = self.phase is Phase.SUMMED and not self._pieces
            self._require((Phase.BETWEEN_STEPS,) if not self._pieces else (), STEP_FIRST if is_accumulated else _PIECES)
            self._sizes.clear()  # of batches that were left out
        self.current.drawn += 1
        self._sizes.append(records)

    def require_current(self, this: Pass) -> None:
        """Refuse to go on with a pass that is not the current one: the generator has moved on."""
        if this is not self.current:
            raise RuntimeError(_PASS_ENDED)

    def announce(self, more: bool) -> None:
        """Record that the next piece of the batch comes, and whether `more` pieces follow it."""
        self._pieces.append(more)

    # The criterion and the optimiser

    def require_backward_allowed(self) -> None:
        """Refuse a second backward pass before the step."""
        self._require((Phase.BETWEEN_STEPS, Phase.PARTIAL), STEP_FIRST)

    def require_zero_grad_allowed(self) -> None:
        """Refuse to forget a piece that is in the sums already."""
        if self.phase is Phase.SUMMED:
            raise RuntimeError(_STEP_BEFORE_ZERO_GRAD)

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Check what is about to be added; after a check that failed nothing can be added any more."""
        phase = self.phase
        with self._unless_broken(Phase.ADDING):
            yield
        self.phase = phase

    @contextmanager
    def adding(self, rows: int) -> Iterator[bool]:
        """Add a piece of so many rows to the sums; the context is whether it is the first piece of its batch."""
        self.require_backward_allowed()
        is_first = self.phase is Phase.BETWEEN_STEPS
        with self._unless_broken(Phase.ADDING):
            self.rows += rows
            yield is_first
        self.phase = Phase.SUMMED

    def end_piece(self) -> bool:
        """End a piece that was added, and return whether other pieces of the batch follow."""
        self._require((Phase.SUMMED,), _BACKWARD_FIRST)
        self.phase = Phase.PARTIAL
        return self._pieces.popleft() if self._pieces else False

    def count_step(self) -> None:
        """Count a step before its update is released, and refuse one with more rows than records were drawn."""
        self._require((Phase.PARTIAL,), _BACKWARD_FIRST)
        self._require_charged()
        self.largest_step = max(self.largest_step, self.rows)
        self._count_pass()
        if not self._sizes:
            self.is_foreign = True
        elif not self.is_foreign and self.rows > max(self._sizes[0], 1):  # an empty batch has a placeholder row
            raise RuntimeError(_ROWS.format(self.rows, self._sizes[0]))
        else:
            self._sizes.popleft()
        self.current.taken = self.current.taken + 1 if self.fetches_ahead else self.current.drawn
        self.steps += 1

    def _require_charged(self) -> None:
        """Refuse a step that the budget file was not charged with."""
        passes = self.passes + (not self.current.is_counted)
        too_many = self.most_steps is not None and self.steps >= self.most_steps
        if too_many or (self.most_passes is not None and passes > self.most_passes):
            raise RuntimeError(_PLANNED_STEPS.format(self.most_steps))

    def _count_pass(self) -> None:
        self.passes += not self.current.is_counted
        self.current.is_counted = True

    @contextmanager
    def releasing(self) -> Iterator[None]:
        """Turn the sums into the update, which ends the batch."""
        self._require((Phase.PARTIAL,), _BACKWARD_FIRST)
        with self._unless_broken(Phase.RELEASING):
            yield
        self.rows = 0
        self.phase = Phase.BETWEEN_STEPS

    @contextmanager
    def _unless_broken(self, phase: Phase) -> Iterator[None]:
        self.phase = phase
        try:
            yield
        except BaseException:
            self.phase = Phase.BROKEN
            raise

    # Checkpoints

    def require_between_steps(self) -> None:
        """Refuse to save or load within a batch, when the error holds a part of the batch."""
        self._require((Phase.BETWEEN_STEPS,), _WITHIN_BATCH)

    def resume(self, *, steps: int, passes: int, taken: int, is_foreign: bool) -> None:
        """Take up the position of a checkpoint; the pass that is under way must not go on.

        Parameters
        ----------
        steps, passes : int
            Steps and passes counted before the checkpoint.
        taken : int
            Batches of the pass that the checkpoint was made in, up to the last one that a step was made of.
        is_foreign : bool
            Whether a step was made without a batch of the private loader.
        """
        self.leave_pass()
        self.steps, self.passes = steps, passes
        self.is_foreign |= is_foreign
        self.current = Pass(taken, taken, is_counted=taken > 0)

    def leave_pass(self) -> None:
        """End the pass that is under way, of which no step can be made any more."""
        self.require_between_steps()
        self.current = Pass()
        self._sizes.clear()
