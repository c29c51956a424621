"""Any torch optimiser, fed with the private update v + noise in the gradient's place.

A batch may come in several pieces (Opacus's `BatchMemoryManager`). For each parameter two sums are kept over them:

    summed = B·clip(e_t, C2) + Σ clip(g_i, C1)      in `p.summed_grad`
    e     ← e_t + (1/B) Σ clip(g_i, C3)             in place, in `error`

At the step v = summed/B and e ← e − v: the two sums are all that the update needs, and error feedback costs one copy of
the parameters. With several processes the first alone carries e_t and the noise into its sums; the others begin from
zero, so that adding up gives the same v and the same e everywhere.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor

from clipsilon.rules.clipping import Unclipped
from clipsilon.rules.feedback import remembers
from clipsilon.rules.rule import Rule
from clipsilon.torch.processes import Processes
from clipsilon.torch.tensors import factor, finite, joint_norm, precise

_STEP_FIRST = (
    "optimizer.step() must follow every backward pass; for large batches there is BatchMemoryManager of Opacus."
)
_TORN = "A step was interrupted, and its sums cannot be told apart: make the training anew and load a checkpoint."
_PIECES = (
    "optimizer.step() must follow every piece of a batch, and every piece of a batch must come before the next one."
)
NO_GRADIENT = (
    "no gradient of each record was found; freeze what the loss does not depend on, or go back to training mode."
)
ONE_ROW = "every layer's input must have one row a record (give position ids, for instance)."


class PrivateOptimizer(DPOptimizer):
    """What both ways of clipping share: the error, the noise, and the step."""

    def __init__(self, optimizer: Any, rule: Rule, generator: torch.Generator, processes: Processes):
        batch, bound = rule.sampling.batch, rule.clip.bound()
        super().__init__(
            optimizer,
            noise_multiplier=rule.noise.std * batch / bound,
            max_grad_norm=bound,
            expected_batch_size=batch,
            generator=generator,
        )
        self.rule, self.processes, self.batch = rule, processes, batch
        self.trained = list(self.params)
        self.error: list[Tensor] = []  # e, hidden state: one tensor a parameter, none without feedback
        if remembers(rule.feedback):
            self.error = [torch.zeros_like(p, dtype=precise(p.dtype), requires_grad=False) for p in self.trained]
        self.on_step: Callable[[int], None] = lambda rows: None  # called before an update is released
        self._begun = False  # whether some piece of the batch has been added
        self._rows = 0  # that were clipped, one by one, in the pieces so far
        self._torn = False  # whether sums are being changed, or were when an error broke in
        self._forget_all()

    def _forget_all(self) -> None:
        """Drop gradients that are not private, of frozen parameters too: the optimiser would take them as they are."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def require_trained(self) -> None:
        """Refuse parameters that were unfrozen or added since: their gradients would be neither clipped nor noised."""
        if list(map(id, self.params)) != list(map(id, self.trained)):
            raise RuntimeError(
                "The parameters to train must stay those that make_private saw: freeze or add them before it."
            )

    @contextmanager
    def undivided(self) -> Iterator[None]:
        """A change of the sums that must be finished: an error within it leaves them those of no batch."""
        if self._torn:
            raise RuntimeError(_TORN)
        self._torn = True
        yield
        self._torn = False

    def begin_pass(self) -> None:
        """Forget what was signalled about pieces of a pass that was left; a batch in pieces cannot be left."""
        if self._begun:
            raise RuntimeError("A pass was left within a batch, with pieces to come: a batch must be finished.")
        self._step_skip_queue.clear()

    def begin_batch(self) -> None:
        """Refuse to go on from a batch of which some piece was left out: the signals would fit other pieces."""
        if self._begun or self._step_skip_queue:
            raise RuntimeError(_PIECES)

    def begin(self, rows: int) -> Tensor | None:
        """What e is multiplied by to begin a batch's sums: B·clip(e)/e at its first piece, None at later ones."""
        self._rows += rows
        if self._begun or not self.error:
            self._begun = True
            return None
        self._begun = True
        return self.batch * factor(self.rule.feedback.clip, joint_norm(e.norm() for e in self.error))

    def recall(self, number: int, share: Tensor | None) -> None:
        """Begin one parameter's sums with its part of the clipped error."""
        if share is None:
            return
        e, p = self.error[number], self.trained[number]
        if self.processes.leads:
            p.summed_grad = (share.to(e.device, e.dtype) * e).to(p.dtype)
        else:
            e.zero_()

    def keep(self, number: int, total: Tensor) -> None:
        """Add a sum of gradients to the error."""
        self.error[number].add_(total, alpha=1 / self.batch)

    @abstractmethod
    def collect(self) -> None:
        """Add the piece's gradients to the batch's sums."""

    def release(self) -> None:
        """Turn the sums into v + noise, and settle the error with v before noise."""
        with self.undivided():
            self._release()
        self._begun, self._rows = False, 0

    def _release(self) -> None:
        self._forget_all()
        for number, p in enumerate(self.trained):
            summed = p.summed_grad
            if self.error:
                self.error[number].sub_(summed, alpha=1 / self.batch)
                self.processes.add_up(self.error[number])
            if self.processes.leads:
                self._add_noise(summed)
            self.processes.add_up(summed)
            p.grad, p.summed_grad = summed.div_(self.batch), None

    def _add_noise(self, summed: Tensor) -> None:
        std = self.rule.noise.std * self.batch
        if std > 0:
            noise = torch.empty_like(summed, device=self.generator.device)
            summed.add_(noise.normal_(std=std, generator=self.generator).to(summed.device))

    def pre_step(self, closure: Any = None) -> bool:
        """Add a piece, and at the last one make the update; returns whether it was the last."""
        self.require_trained()
        self.collect()
        self._is_last_step_skipped = self._check_skip_next_step()
        if self._is_last_step_skipped:
            return False
        self.on_step(self._rows)  # counted before it is released
        self.release()
        if self.step_hook:
            self.step_hook(self)
        return True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients, but not the sums of a batch of which some pieces are still to come."""
        for p in self.trained:
            p.grad = p.grad_sample = None

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state and the error, which no noise covers: keep it as private as the data."""
        self.require_between_steps()
        return {**self.original_optimizer.state_dict(), "error": [e.clone() for e in self.error]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the optimiser's state and the error."""
        self.require_between_steps()
        if [e.shape for e in state_dict.get("error", [])] != [e.shape for e in self.error]:
            raise ValueError("state_dict must hold an error of this model and algorithm, got one of another.")
        self.original_optimizer.load_state_dict(state_dict)
        for e, saved in zip(self.error, state_dict.get("error", []), strict=True):
            e.copy_(saved)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies, which would share the noise, and whose making would break torch's optimisers of this class."""
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: use optimizer.state_dict(), or save_checkpoint of the "
            "engine."
        )

    def require_between_steps(self) -> None:
        """Refuse to save or load a state in the middle of a batch, when e is not e."""
        if self._torn:
            raise RuntimeError(_TORN)
        if self._begun:
            raise RuntimeError("A state can be saved or loaded between steps only, not within a batch.")


class HooksOptimizer(PrivateOptimizer):
    """Clips per-sample gradients, which the model's hooks have left in `p.grad_sample`."""

    def collect(self) -> None:
        """Add the piece's gradients to the batch's sums."""
        samples = [_sample(p) for p in self.trained]
        if len({len(sample) for sample in samples}) > 1:
            raise RuntimeError(f"Layers saw batches of different sizes: {ONE_ROW}")
        norms = finite(joint_norm(s.flatten(1).norm(dim=1, dtype=precise(s.dtype)) for s in samples))
        clipped = factor(self.rule.clip, norms)
        capped = factor(self.rule.feedback.cap, norms) if self.error else None
        with self.undivided():
            share = self.begin(len(norms))
            for number, sample in enumerate(samples):
                self.recall(number, share)
                self._add(number, _weighted_sum(clipped, sample))
                if capped is not None:
                    self.keep(number, _weighted_sum(capped, sample))

    def _add(self, number: int, total: Tensor) -> None:
        p = self.trained[number]
        p.summed_grad = total.to(p.dtype) if p.summed_grad is None else p.summed_grad.add_(total)
        p.grad_sample = None


def _sample(p: Tensor) -> Tensor:
    if isinstance(p.grad_sample, list):
        raise RuntimeError(_STEP_FIRST)
    if p.grad_sample is None:
        raise RuntimeError(f"A parameter: {NO_GRADIENT}")
    return p.grad_sample


def _weighted_sum(weights: Tensor, sample: Tensor) -> Tensor:
    return torch.einsum("i,i...", weights.to(sample.device, sample.dtype), sample)


class GhostOptimizer(PrivateOptimizer):
    """Takes the sums that the two backward passes of `RecordLosses` make."""

    _waits = False  # whether a backward pass has added to the sums, and a step is due

    @property
    def keeps_whole(self) -> bool:
        """Whether the error keeps whole gradients, which the first pass can make."""
        return bool(self.error) and type(self.rule.feedback.cap) is Unclipped

    @property
    def caps(self) -> bool:
        """Whether the error keeps capped gradients, which the second pass has to make."""
        return bool(self.error) and not self.keeps_whole

    def before_first_pass(self) -> None:
        """Make room for the sums of whole gradients."""
        if self._waits:
            raise RuntimeError(_STEP_FIRST)
        self.require_trained()
        for p in self.trained:
            p.grad = p._norm_sample = None

    def between_passes(self, rows: int) -> None:
        """Keep the whole gradients in the error, and let the second pass add to the batch's sums in `p.grad`."""
        share = self.begin(rows)
        for number, p in enumerate(self.trained):
            whole, p.grad = p.grad, None
            self.recall(number, share)
            if self.keeps_whole:
                self.keep(number, whole)
            p.grad, p.summed_grad = p.summed_grad, None

    def after_second_pass(self) -> None:
        """Put the sums where nobody takes them for gradients."""
        for p in self.trained:
            p.summed_grad, p.grad = p.grad, None
        self._waits = True

    def collect(self) -> None:
        """See that the passes were made."""
        if not self._waits:
            raise RuntimeError("A backward pass of the private criterion's loss must precede optimizer.step().")
        self._waits = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients; a batch that the error has kept cannot be forgotten."""
        if self._waits:
            raise RuntimeError("optimizer.step() must come before optimizer.zero_grad(): the error has kept the batch.")
        super().zero_grad(set_to_none)
