"""Any torch optimiser, with the private update v + noise in place of the gradient.

A batch may come in several pieces (Opacus's `BatchMemoryManager`). For each parameter two sums are kept over them:

    summed = B·clip(e_t, C2) + Σ clip(g_i, C1)      in `p.summed_grad`
    e     ← e_t + (1/B) Σ clip(g_i, C3)             in place, in `error`

At the step v = summed/B and e ← e − v. The update needs no more than these two sums, and error feedback costs one copy
of the parameters. With several processes only the first one carries e_t and the noise into its sums; the others begin
from zero, so that the sum over processes gives the same v and the same e everywhere.

`clipsilon.torch.batch_state` describes the order of the calls, and refuses any other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor

from clipsilon.rules.clipping import Unclipped, bound_of
from clipsilon.rules.feedback import remembers
from clipsilon.rules.noise import std_of
from clipsilon.rules.rule import Rule
from clipsilon.torch.batch_state import STEP_FIRST, BatchState
from clipsilon.torch.lineage import Lineage, take_spent, write_spent
from clipsilon.torch.processes import Processes
from clipsilon.torch.rules import error_feedback_of, noise_multiplier, sampling_of
from clipsilon.torch.tensors import accumulation_dtype, clip_factor, joint_norm, require_finite

NO_GRADIENT = (
    "no gradient per record was found; freeze what the loss does not depend on, freeze layers as a whole, or go back "
    "to training mode."
)
_BY_HAND = (
    "The optimiser that was given to make_private must not step by itself: its gradients have neither clip nor noise; "
    "call step() of the optimiser that make_private returned."
)
ONE_ROW = "every layer's input must have one row per record (give position ids, for instance)."


class PrivateOptimizer(DPOptimizer):
    """What both ways of clipping share: the error, the noise and the step.

    `step` of Opacus calls `pre_step`, and then the original optimiser, which refuses to step otherwise.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimiser that takes the private update as its gradient.
    rule : Rule
        The update: clip, feedback, noise and expected batch size.
    generator : torch.Generator
        Generator of the noise.
    processes : Processes
        The processes that train together.
    state : BatchState
        The state of the current batch, shared with the loader and the model.

    Attributes
    ----------
    trained : list of Tensor
        The parameters that the update moves: those that required gradients at the start.
    error : list of Tensor
        e, hidden state: one tensor per parameter; empty without feedback.
    lineage : Lineage
        The trainings that the model went through.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rule: Rule,
        generator: torch.Generator,
        processes: Processes,
        state: BatchState,
    ):
        batch = sampling_of(rule).batch
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier(rule),
            max_grad_norm=bound_of(rule.clip),
            expected_batch_size=batch,
            generator=generator,
        )
        self.rule, self.processes, self.batch, self.batch_state = rule, processes, batch, state
        self.trained = list(self.params)
        self.error: list[Tensor] = []
        if remembers(rule.feedback):
            self.error = [
                torch.zeros_like(p, dtype=accumulation_dtype(p.dtype), requires_grad=False) for p in self.trained
            ]
        self.lineage = Lineage("", state)
        self._is_stepping = False
        optimizer.register_step_pre_hook(self._refuse_other_steps)
        self._drop_gradients()

    def _refuse_other_steps(self, *args: Any) -> None:
        """Refuse a step of the original optimiser that is not a part of a private one; PyTorch calls this."""
        if not self._is_stepping:
            raise RuntimeError(_BY_HAND)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make the private update and apply it, or only add a piece of a batch to the sums."""
        self._is_stepping = True
        try:
            return super().step(closure)  # type: ignore[no-any-return]
        finally:
            self._is_stepping = False

    def _drop_gradients(self) -> None:
        """Drop gradients that are not private, also of frozen parameters: the optimiser would apply them."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def require_same_parameters(self) -> None:
        """Refuse parameters that were unfrozen or added later: their gradients would get neither clip nor noise."""
        if list(map(id, self.params)) != list(map(id, self.trained)):
            raise RuntimeError(
                "The parameters to train must stay those that make_private saw: freeze or add them before it."
            )

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Announce a piece of a batch, and whether others follow it; `BatchMemoryManager` calls this."""
        self.batch_state.announce(do_skip)

    def error_factor(self) -> Tensor:
        """Return B·clip(e)/e, by which the error is multiplied to begin the sums of a batch."""
        clip = error_feedback_of(self.rule).clip
        return self.batch * clip_factor(clip, joint_norm(e.norm() for e in self.error))

    def begin_sum(self, number: int, factor: Tensor) -> None:
        """Begin the sum of one parameter with its part of the clipped error."""
        e, p = self.error[number], self.trained[number]
        if self.processes.is_first:
            p.summed_grad = (factor.to(e.device, e.dtype) * e).to(p.dtype)
        else:
            e.zero_()

    def add_to_error(self, number: int, total: Tensor) -> None:
        """Add a sum of gradients to the error of one parameter."""
        self.error[number].add_(total, alpha=1 / self.batch)

    @abstractmethod
    def clip_and_accumulate(self) -> None:
        """Add the clipped gradients of a piece to the sums of its batch."""

    def release(self) -> None:
        """Turn the sums into v + noise, and subtract v, before noise, from the error."""
        with self.batch_state.releasing():
            self._drop_gradients()
            for number, p in enumerate(self.trained):
                p.grad, p.summed_grad = self._noisy_mean(number, p.summed_grad), None

    def _noisy_mean(self, number: int, summed: Tensor) -> Tensor:
        if self.error:
            self.error[number].sub_(summed, alpha=1 / self.batch)
            self.processes.all_reduce(self.error[number])
        if self.processes.is_first:
            self._add_noise(summed)
        self.processes.all_reduce(summed)
        return summed.div_(self.batch)

    def _add_noise(self, summed: Tensor) -> None:
        std = std_of(self.rule.noise) * self.batch
        if std > 0:
            noise = torch.empty_like(summed, device=self.generator.device)
            summed.add_(noise.normal_(std=std, generator=self.generator).to(summed.device))

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Add a piece and, if it is the last one, make the update; return whether it was the last one."""
        self.require_same_parameters()
        self.clip_and_accumulate()
        self._is_last_step_skipped = self.batch_state.end_piece()
        if self._is_last_step_skipped:
            return False
        self.batch_state.count_step()  # before anything is released
        self.release()
        if self.step_hook:
            self.step_hook(self)
        return True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients, but not the sums of a batch; refuse it where the gradients are in the sums already."""
        self.batch_state.require_zero_grad_allowed()
        for p in self.trained:
            p.grad = p.grad_sample = None

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser's state, the error and the number of steps that were taken.

        No noise hides the error: keep it as private as the data.
        """
        self.batch_state.require_between_steps()
        state = {**self.original_optimizer.state_dict(), "error": [e.clone() for e in self.error]}
        write_spent(state, self.lineage)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the optimiser's state and the error; steps of another training that it took part in are counted."""
        self.batch_state.require_between_steps()
        if [e.shape for e in state_dict.get("error", [])] != [e.shape for e in self.error]:
            raise ValueError("state_dict must hold an error of this model and algorithm, got one of another.")
        self.original_optimizer.load_state_dict(state_dict)
        self.lineage.add(take_spent(self.param_groups))
        for e, saved in zip(self.error, state_dict.get("error", []), strict=True):
            e.copy_(saved)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copies, which would share the noise, and whose making would break torch's optimisers of this class."""
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: use optimizer.state_dict(), or save_checkpoint of the "
            "engine."
        )


class HooksOptimizer(PrivateOptimizer):
    """Clips per-sample gradients, which the model's hooks have left in `p.grad_sample`."""

    def clip_and_accumulate(self) -> None:
        """Add the clipped gradients of a piece to the sums of its batch."""
        samples = [_grad_sample(p) for p in self.trained]
        if len({len(sample) for sample in samples}) > 1:
            raise RuntimeError(f"Layers saw batches of different sizes: {ONE_ROW}")
        norms = joint_norm(s.flatten(1).norm(dim=1, dtype=accumulation_dtype(s.dtype)) for s in samples)
        clipped = clip_factor(self.rule.clip, require_finite(norms))
        capped = clip_factor(error_feedback_of(self.rule).cap, norms) if self.error else None
        with self.batch_state.adding(len(norms)) as is_first:
            factor = self.error_factor() if self.error and is_first else None
            for number, sample in enumerate(samples):
                if factor is not None:
                    self.begin_sum(number, factor)
                self._add(number, _weighted_sum(clipped, sample))
                if capped is not None:
                    self.add_to_error(number, _weighted_sum(capped, sample))

    def _add(self, number: int, total: Tensor) -> None:
        p = self.trained[number]
        p.summed_grad = total.to(p.dtype) if p.summed_grad is None else p.summed_grad.add_(total)
        p.grad_sample = None


def _grad_sample(p: Tensor) -> Tensor:
    if isinstance(p.grad_sample, list):  # Opacus appends where several backward passes were made
        raise RuntimeError(STEP_FIRST)
    if p.grad_sample is None:
        raise RuntimeError(f"A parameter: {NO_GRADIENT}")
    return p.grad_sample


def _weighted_sum(weights: Tensor, sample: Tensor) -> Tensor:
    return torch.einsum("i,i...", weights.to(sample.device, sample.dtype), sample)


class GhostOptimizer(PrivateOptimizer):
    """Takes the sums that the two backward passes of `RecordLosses` make."""

    @property
    def keeps_full_gradients(self) -> bool:
        """Whether the error keeps gradients without a cap, which the first pass can sum."""
        return bool(self.error) and type(error_feedback_of(self.rule).cap) is Unclipped

    @property
    def keeps_capped_gradients(self) -> bool:
        """Whether the error keeps capped gradients, which the second pass has to sum."""
        return bool(self.error) and not self.keeps_full_gradients

    def before_first_pass(self) -> None:
        """Clear the gradients and norms that the first pass writes."""
        self.batch_state.require_backward_allowed()
        self.require_same_parameters()
        for p in self.trained:
            p.grad = p._norm_sample = None

    def between_passes(self, is_first: bool) -> None:
        """Add the full gradients to the error, and let the second pass add to the batch's sums in `p.grad`."""
        factor = self.error_factor() if self.error and is_first else None
        for number, p in enumerate(self.trained):
            full, p.grad = p.grad, None
            if factor is not None:
                self.begin_sum(number, factor)
            if self.keeps_full_gradients:
                self.add_to_error(number, full)
            p.grad, p.summed_grad = p.summed_grad, None

    def after_second_pass(self) -> None:
        """Move the sums out of `p.grad`, where they could be taken for gradients."""
        for p in self.trained:
            p.summed_grad, p.grad = p.grad, None

    def clip_and_accumulate(self) -> None:
        """Do nothing: the backward passes have added to the sums, and `BatchState.end_piece` refuses a step if not."""
