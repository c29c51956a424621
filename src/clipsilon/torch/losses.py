"""A criterion for ghost clipping: one loss a record, whose `backward` makes both passes."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from clipsilon.torch.models import GhostModel
from clipsilon.torch.optimizer import GhostOptimizer
from clipsilon.torch.tensors import factor, finite


class RecordLosses:
    """The losses of a batch's records; in a training loop it stands for their mean."""

    def __init__(self, model: GhostModel, optimizer: GhostOptimizer, losses: Tensor):
        self.model, self.optimizer, self.losses = model, optimizer, losses

    def detach(self) -> Tensor:
        """The mean, for people; it is not private."""
        return self.losses.detach().mean()

    def item(self) -> float:
        """The mean as a number, for people; it is not private."""
        return float(self.detach())

    def __add__(self, other: RecordLosses) -> RecordLosses:
        if not isinstance(other, RecordLosses):
            raise TypeError(
                "Only losses of the private criterion can be added to one another, since anything else, such as a "
                f"penalty, would get round the clipping, got {type(other).__name__}; there is weight_decay."
            )
        return RecordLosses(self.model, self.optimizer, self.losses + other.losses)

    __radd__ = __add__

    def __mul__(self, number: float) -> RecordLosses:
        return RecordLosses(self.model, self.optimizer, self.losses * float(number))

    __rmul__ = __mul__

    def __truediv__(self, number: float) -> RecordLosses:
        return self * (1 / number)

    def backward(self) -> None:
        """Σ g_i and the norms of the g_i by one pass, Σ clip(g_i) by another."""
        rule, optimizer = self.optimizer.rule, self.optimizer
        optimizer.before_first_pass()
        self.model.check_uses(self.losses)
        self.model.first_pass(self.losses.sum())
        norms = finite(self.model.norms(len(self.losses)))
        clipped = factor(rule.clip, norms)
        weights = factor(rule.feedback.cap, norms) / clipped if optimizer.caps else None
        with optimizer.undivided():
            optimizer.between_passes(len(norms))
            self.model.second_pass((clipped.to(self.losses) * self.losses).sum(), weights)
            self.model.check_sums(clipped * norms)
            optimizer.after_second_pass()


class RecordCriterion:
    """A criterion that gives `RecordLosses`; a loss with several terms a record is reduced as the criterion says.

    As with Opacus, `shape` is that of the scores before they were flattened, for criteria that take the tokens of all
    records in one row: (records, length, …).
    """

    def __init__(self, model: GhostModel, optimizer: GhostOptimizer, criterion: Any):
        self.model, self.optimizer = model, optimizer
        self.reduction = getattr(criterion, "reduction", "mean")
        self.criterion = copy.copy(criterion)
        if hasattr(criterion, "reduction"):
            self.criterion.reduction = "none"

    def __call__(self, scores: Any, targets: Any, *, shape: Any = None) -> RecordLosses:
        """The losses of a batch."""
        losses = self.criterion(scores, targets)
        if not losses.dim():
            raise ValueError("criterion must give one loss a record, or have a `reduction`, got one number for all.")
        if shape is not None:
            losses, targets = losses.view(shape[0], shape[1]), targets.view(shape[0], shape[1])
        return RecordLosses(self.model, self.optimizer, self._reduced(losses, targets))

    def _reduced(self, losses: Tensor, targets: Any) -> Tensor:
        if losses.dim() < 2:
            return losses
        terms: Any = losses.flatten(1).shape[1]
        ignored = getattr(self.criterion, "ignore_index", None)
        if ignored is not None and targets.shape == losses.shape:
            terms = (targets != ignored).flatten(1).sum(1).clamp(min=1)
        total = losses.flatten(1).sum(1)
        return total if self.reduction in ("sum", "batchmean") else total / terms  # a batch's mean is over records
