"""A criterion for ghost clipping: one loss per record, whose `backward` makes both passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from torch import Tensor

from clipsilon.torch.loss_check import Scores, plain
from clipsilon.torch.models import GhostModel
from clipsilon.torch.optimizer import GhostOptimizer


class RecordLosses:
    """The losses of a batch's records; in a training loop it stands for their mean.

    Parameters
    ----------
    model : GhostModel
        The private model that the losses were computed by.
    optimizer : GhostOptimizer
        The optimiser that the sums are for.
    losses : Tensor
        One loss per record.
    """

    def __init__(self, model: GhostModel, optimizer: GhostOptimizer, losses: Tensor):
        self.model, self.optimizer, self.losses = model, optimizer, losses

    def detach(self) -> Tensor:
        """Return the mean loss, for monitoring; it is not private."""
        return self.losses.detach().mean()

    def item(self) -> float:
        """Return the mean loss as a number, for monitoring; it is not private."""
        return float(self.detach())

    def __add__(self, other: RecordLosses) -> RecordLosses:
        if not isinstance(other, RecordLosses):
            raise TypeError(
                "Only losses of the private criterion can be added to one another, since anything else, such as a "
                f"penalty, would evade the clipping, got {type(other).__name__}; use the optimiser's weight_decay."
            )
        return RecordLosses(self.model, self.optimizer, self.losses + other.losses)

    __radd__ = __add__

    def __mul__(self, number: float) -> RecordLosses:
        return RecordLosses(self.model, self.optimizer, self.losses * float(number))

    __rmul__ = __mul__

    def __truediv__(self, number: float) -> RecordLosses:
        return self * (1 / number)

    def backward(self) -> None:
        """Bound the norms of the g_i in one backward pass, and add Σ clip(g_i) to the sums of the batch."""
        optimizer = self.optimizer
        optimizer.before_first_pass()
        self.model.check_uses(self.losses)
        self.model.check_layers(self.losses)
        self.model.first_pass(self.losses.sum())
        norms = optimizer.finite_norms(self.model.norms(len(self.losses)))
        with optimizer.batch_state.adding(len(norms[0])) as is_first:
            optimizer.begin_piece(is_first)
            optimizer.add_piece(self.model.take_calls(), norms)


class RecordCriterion:
    """A criterion that returns `RecordLosses`.

    A loss with several terms per record is reduced as the criterion's `reduction` says.

    Parameters
    ----------
    model : GhostModel
        The private model.
    optimizer : GhostOptimizer
        Its optimiser.
    criterion : callable
        Maps scores and targets to one loss per record, or has a `reduction` that can be set to "none".
    """

    def __init__(self, model: GhostModel, optimizer: GhostOptimizer, criterion: Callable[..., Tensor]):
        self.model, self.optimizer = model, optimizer
        self.reduction = getattr(criterion, "reduction", "mean")
        self.criterion = copy.copy(criterion)
        if hasattr(criterion, "reduction"):
            self.criterion.reduction = "none"  # type: ignore[attr-defined]

    def __call__(self, scores: Tensor, targets: Tensor, *, shape: Sequence[int] | None = None) -> RecordLosses:
        """Return the losses of a batch.

        Parameters
        ----------
        scores, targets : Tensor
            The arguments of the criterion.
        shape : sequence of int, optional
            The shape of the scores before they were flattened, (records, length, …), for criteria that take the tokens
            of all records in one row, as in Opacus.

        Returns
        -------
        RecordLosses
            One loss per record.
        """
        losses = self.criterion(scores, targets)
        if not losses.dim():
            raise ValueError("criterion must give one loss per record, or have a `reduction`, got one number for all.")
        if isinstance(losses, Scores) and losses.tape is not None and losses.tape.is_open:
            losses.tape.on_loss(losses.tape, losses)
        losses, targets = plain(losses), plain(targets)
        if shape is not None:
            losses, targets = losses.view(shape[0], shape[1]), targets.view(shape[0], shape[1])
        return RecordLosses(self.model, self.optimizer, self._reduce(losses, targets))

    def _reduce(self, losses: Tensor, targets: Tensor) -> Tensor:
        if losses.dim() < 2:
            return losses
        terms: int | Tensor = losses.flatten(1).shape[1]
        ignored = getattr(self.criterion, "ignore_index", None)
        if ignored is not None and targets.shape == losses.shape:
            terms = (targets != ignored).flatten(1).sum(1).clamp(min=1)
        total = losses.flatten(1).sum(1)
        return total if self.reduction in ("sum", "batchmean") else total / terms  # "batchmean" averages over records
