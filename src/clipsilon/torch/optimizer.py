"""Any torch optimiser, with the private update v + noise in place of the gradient.

A batch may come in several pieces (Opacus's `BatchMemoryManager`). For each parameter two sums are kept over them:

    summed = B·clip(e_t, C2) + Σ clip(g_i, C1)      in `p.summed_grad`
    B·e   ← B·e_t + Σ clip(g_i, C3)                 in place, in `residual`

At the step v = summed/B and e ← e − v. With an adaptive clip, C1 is the threshold in force, and the records that it
clips are counted as well (`clipsilon.torch.threshold`). Both sums are whole numbers on the grid of `exact_sums`, kept
as float64 on the CPU. The update needs no more than these two. With several processes only the first one carries e_t
and the noise into its sums; the others begin from zero, so that the sum over processes, which is exact, gives the same
v and the same e everywhere, bit for bit those of one process.

`clipsilon.torch.batch_state` describes the order of the calls, and refuses any other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.optimizers import DPOptimizer
from torch import Tensor

from clipsilon.rules.clipping import Adaptive, Clip, Unclipped
from clipsilon.rules.feedback import remembers
from clipsilon.rules.rule import Rule
from clipsilon.torch.batch_state import STEP_FIRST, BatchState
from clipsilon.torch.clipping import Group, clip_factor, clip_factors, lower, require_finite
from clipsilon.torch.exact_sums import (
    MOST_PARAMETERS,
    ExactNoise,
    add_whole,
    is_capped,
    limit_error,
    measure,
    to_whole,
)
from clipsilon.torch.ghost_sums import LayerRows, has_too_many_terms, sums_of
from clipsilon.torch.lineage import Lineage, take_spent, write_spent
from clipsilon.torch.processes import Processes
from clipsilon.torch.rules import clip_bound, error_feedback_of, noise_multiplier, sampling_of
from clipsilon.torch.threshold import Threshold

NO_GRADIENT = (
    "no gradient per record was found; freeze what the loss does not depend on, freeze layers as a whole, or go back "
    "to training mode."
)
_BY_HAND = (
    "The optimiser that was given to make_private must not step by itself: its gradients have neither clip nor noise; "
    "call step() of the optimiser that make_private returned."
)
_SCALED = (
    "GradScaler must not be used, or be made with enabled=False: it scales the gradients that are clipped, and leaves "
    "out batches where one overflows, which reveals a record."
)
_TOO_MANY = (
    "Nothing can be certified: a step was made of more than 128 + 8·batch_size rows, for which sums are not exact."
)
ERROR_REPLACED = (
    "Nothing can be certified: steps were taken, and then an earlier error was loaded, so that what records left in it "
    "is fed back twice; with residual_cap, load states before the first step only."
)
_NOT_FINITE = (
    "Nothing can be certified: a record's gradient was not finite, and that its batch was left out reveals the record."
)
_OTHER_PROCESS = "Nothing can be certified: one of the processes has a fault, which its own statement names."
_TOO_LONG = (
    "Nothing can be certified: a layer saw more than four million rows at once, for which the rounding of ghost mode's "
    "sums is not bounded; split batches with BatchMemoryManager of Opacus."
)
_PEOPLE = (
    "With groups, a step must have all rows of the people who were drawn, in the order of the batch, got {} rows where "
    "{} were drawn; leave out BatchMemoryManager, and whatever drops, repeats or moves rows."
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
    noise : ExactNoise
        The grid of the sums, and the noise.
    processes : Processes
        The processes that train together.
    state : BatchState
        The state of the current batch, shared with the loader and the model.

    Attributes
    ----------
    trained : list of Tensor
        The parameters that the update moves: those that required gradients at the start.
    groups : list of tuple of int
        Which of them are clipped together, as places in `trained`: all of them unless replaced.
    residual : list of Tensor
        B·e in units of the grid, hidden state: whole numbers, one tensor per parameter; empty without feedback.
    threshold : Threshold or None
        The threshold of an adaptive clip, which `max_grad_norm` shows as well; None if the clip is constant.
    lineage : Lineage
        The trainings that the model went through.
    has_records : bool
        Whether the gradients are those of records, and not of the placeholder of an empty batch.
    call : int or None
        The number of the model's call that the gradients are of; None without gradients.
    has_people : bool
        Whether records are people with several rows, as the loader draws them.
    rows_per_person : array of int or None
        With people: how many rows each has in the batch that the gradients are of.
    """

    _step_supports_amp_scaling = True  # so that GradScaler calls `step` in any case, which refuses it

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rule: Rule,
        noise: ExactNoise,
        processes: Processes,
        state: BatchState,
    ):
        batch = sampling_of(rule).batch
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier(rule),
            max_grad_norm=clip_bound(rule),
            expected_batch_size=batch,
        )
        self.rule, self.noise, self.processes, self.batch, self.batch_state = rule, noise, processes, batch, state
        self.trained = list(self.params)
        self.groups: list[Group] = [tuple(range(len(self.trained)))]
        if self.parameters > MOST_PARAMETERS:
            raise ValueError(f"module must have at most 2**32 parameters to train, got {self.parameters}.")
        self.residual: list[Tensor] = [_zeros_like(p) for p in self.trained] if remembers(rule.feedback) else []
        self.threshold = Threshold(rule.clip) if isinstance(rule.clip, Adaptive) else None
        self.lineage = Lineage("", state)
        self.has_records, self.has_people = True, False
        self.call: int | None = None
        self.rows_per_person: NDArray[np.int64] | None = None
        self._is_stepping = False
        optimizer.register_step_pre_hook(self._refuse_other_steps)
        self._drop_gradients()

    @property
    def parameters(self) -> int:
        """The number of entries of all parameters that are trained."""
        return sum(p.numel() for p in self.trained)

    @property
    def clip(self) -> Clip:
        """The clip in force, of the whole gradient."""
        return self.rule.clip if self.threshold is None else self.threshold.clip_in_force

    @property
    def error(self) -> list[Tensor]:
        """e, hidden state: one tensor per parameter, as float64 on the CPU; empty without feedback."""
        return [whole * (self.noise.grid.unit / self.batch) for whole in self.residual]

    def _refuse_other_steps(self, *args: Any) -> None:
        """Refuse a step of the original optimiser that is not a part of a private one; PyTorch calls this."""
        if not self._is_stepping:
            raise RuntimeError(_BY_HAND)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make the private update and apply it, or only add a piece of a batch to the sums."""
        if self.__dict__.pop("found_inf", None) is not None:  # of GradScaler
            raise RuntimeError(_SCALED)
        loss = None
        if closure is not None:  # which must not step itself
            with torch.enable_grad():
                loss = closure()
        self._is_stepping = True
        try:
            super().step()
        finally:
            self._is_stepping = False
        return loss

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

    def begin_sums(self) -> None:
        """Begin the sums of a batch with the clipped error; only the first process carries it."""
        clip = lower(error_feedback_of(self.rule).clip, self.batch / self.noise.grid.unit)
        factor = clip_factor(clip, measure([whole.unsqueeze(0) for whole in self.residual]))
        for p, whole in zip(self.trained, self.residual, strict=True):
            if self.processes.is_first:
                p.summed_grad = (factor.item() * whole).trunc_()
            else:
                whole.zero_()

    def factors(self, clip: Clip, norms: list[Tensor]) -> list[Tensor]:
        """Return what gradients are multiplied by, for each parameter, from the norms of each group; in units."""
        return [factors / self.noise.grid.unit for factors in clip_factors(clip, self.groups, norms)]

    def count_records(self, norms: list[Tensor]) -> None:
        """Count the records of a piece if the clip adapts; a placeholder is none of them."""
        if self.threshold is not None:
            self.threshold.count(norms[0] if self.has_records else norms[0][:0])

    def sum_of(self, number: int) -> Tensor:
        """Return the sum of one parameter, which begins with zero unless the error was put there."""
        p = self.trained[number]
        if p.summed_grad is None:
            p.summed_grad = _zeros_like(p)
        return p.summed_grad

    @abstractmethod
    def clip_and_accumulate(self) -> None:
        """Add the clipped gradients of a piece to the sums of its batch."""

    def release(self) -> None:
        """Turn the sums into v + noise, and subtract v, before noise, from the error."""
        if self.batch_state.rows * self.processes.world > self.noise.grid.rows:
            self.batch_state.add_fault(_TOO_MANY)
        with self.batch_state.releasing():
            self._share_faults()
            self._drop_gradients()
            following = self._adapt()  # before the noise of the sums is drawn, as in the compiled engine
            for number, p in enumerate(self.trained):
                p.grad, p.summed_grad = self._noisy_mean(number, self.sum_of(number)), None
            self._set_threshold(following)

    def _share_faults(self) -> None:
        """Let no process certify what another one of them does not."""
        count = torch.tensor(float(len(self.batch_state.faults) + self.batch_state.is_foreign))
        self.processes.all_reduce(count, self.trained[0].device)
        if self.processes.world > 1 and count:
            self.batch_state.add_fault(_OTHER_PROCESS)

    def _adapt(self) -> float | None:
        """Return the threshold of the next step; None if the clip is constant."""
        if self.threshold is None:
            return None
        return self.threshold.next_value(self.noise.stream, self.processes, self.trained[0].device)

    def _set_threshold(self, value: float | None) -> None:
        """Replace the threshold; clip, grid and noise of the next steps follow it."""
        if self.threshold is not None and value is not None:
            self.threshold.value = self.max_grad_norm = value
            self.noise.follow_clip(self.threshold.growth)

    def _noisy_mean(self, number: int, summed: Tensor) -> Tensor:
        p = self.trained[number]
        self.processes.all_reduce(summed, p.device)
        if self.residual:
            self.processes.all_reduce(self.residual[number], p.device)
            self.residual[number].sub_(summed)
            limit_error(self.residual[number], is_capped(self.rule))
        return self.processes.first_of(self._add_noise(summed, number), p.device)

    def _add_noise(self, summed: Tensor, number: int) -> Tensor:
        p = self.trained[number]
        if not self.processes.is_first:
            return torch.empty(p.shape, dtype=p.dtype)
        return self.noise.release(summed, self.batch, p, number)

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
        self._require_finite_dropped()
        self.call = None
        for p in self.trained:
            p.grad = p.grad_sample = None

    def _require_finite_dropped(self) -> None:
        """Certify nothing where gradients per record are dropped that no step could be made of."""
        if not all(bool(t.isfinite().all()) for p in self.trained for t in _grad_samples(p)):
            self.batch_state.add_fault(_NOT_FINITE)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser's state, the error, the threshold and the number of steps that were taken.

        No noise hides the error: keep it as private as the data.
        """
        self.batch_state.require_between_steps()
        kept = {"error": [whole.clone() for whole in self.residual], "error_unit": self.noise.grid.unit / self.batch}
        adaptive = {} if self.threshold is None else {"threshold": self.threshold.value}
        state = {**self.original_optimizer.state_dict(), **kept, **adaptive}
        write_spent(state, self.lineage)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the optimiser's state, error and threshold; steps of another training that it was in are counted."""
        self.batch_state.require_between_steps()
        saved = state_dict.get("error", [])
        if [e.shape for e in saved] != [e.shape for e in self.residual]:
            raise ValueError("state_dict must hold an error of this model and algorithm, got one of another.")
        threshold = None
        if self.threshold is not None and "threshold" in state_dict:
            threshold = self.threshold.check(state_dict["threshold"])
        self.original_optimizer.load_state_dict(state_dict)
        self.lineage.add(take_spent(self.param_groups))
        units = state_dict.get("error_unit", 1.0) / (self.noise.grid.unit / self.batch)  # 1 for the same settings
        self._replace_error([(other.to("cpu", torch.float64) * units).round_() for other in saved])
        self._set_threshold(threshold)

    def _replace_error(self, error: list[Tensor]) -> None:
        """Load an error. With a cap, what records leave in it is counted once: it may not go back after a step."""
        is_same = all(map(torch.equal, self.residual, error))
        if self.batch_state.steps and is_capped(self.rule) and not is_same:
            self.batch_state.add_fault(ERROR_REPLACED)
        for whole, other in zip(self.residual, error, strict=True):
            whole.copy_(other)

    def finite_norms(self, norms: list[Tensor]) -> list[Tensor]:
        """Return the norms of each group; raise RuntimeError, and certify nothing, if any is not finite."""
        if not all(bool(group.isfinite().all()) for group in norms):
            self.batch_state.add_fault(_NOT_FINITE)
        return [require_finite(group) for group in norms]

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
        if self.has_people:
            samples = self._means(samples)
        norms = self.finite_norms([measure([samples[place] for place in group]) for group in self.groups])
        clipped = self.factors(self.clip, norms)
        capped = self.factors(error_feedback_of(self.rule).cap, norms) if self.residual else None
        with self.batch_state.adding(len(samples[0])) as is_first:
            if self.residual and is_first:
                self.begin_sums()
            self.count_records(norms)
            for number, sample in enumerate(samples):
                add_whole(sample, clipped[number], self.sum_of(number))
                if capped is not None:
                    self.add_to_error(number, sample, capped[number])
                self.trained[number].grad_sample = None
        self.call = None

    def _means(self, samples: list[Tensor]) -> list[Tensor]:
        """Return the mean of the gradients of each person's rows; a batch of nobody has a placeholder row of zeros."""
        counts, rows = self.rows_per_person, len(samples[0])
        if counts is None or rows != max(1, counts.sum()):
            raise RuntimeError(_PEOPLE.format(rows, 0 if counts is None else counts.sum()))
        if not counts.size:
            return samples
        people = torch.from_numpy(np.repeat(np.arange(counts.size), counts))
        return [_mean_rows(sample, people.to(sample.device), torch.from_numpy(counts)) for sample in samples]

    def add_to_error(self, number: int, sample: Tensor, factors: Tensor) -> None:
        """Add per-sample gradients to the error of one parameter.

        Parameters
        ----------
        number : int
            The place of the parameter in `trained`.
        sample : Tensor
            Its gradient per record.
        factors : Tensor
            One factor per record, in units of the grid.
        """
        add_whole(sample, factors, self.residual[number])


def _grad_samples(p: Tensor) -> list[Tensor]:
    """Return the gradients per record of all backward passes since the last step."""
    if p.grad_sample is None:
        return []
    return p.grad_sample if isinstance(p.grad_sample, list) else [p.grad_sample]


def _grad_sample(p: Tensor) -> Tensor:
    if isinstance(p.grad_sample, list):  # Opacus appends where several backward passes were made
        raise RuntimeError(STEP_FIRST)
    if p.grad_sample is None:
        raise RuntimeError(f"A parameter: {NO_GRADIENT}")
    return p.grad_sample


def _mean_rows(sample: Tensor, people: Tensor, counts: Tensor) -> Tensor:
    """Return the mean of the rows of each person, given the number of each row's person."""
    sums = sample.new_zeros((len(counts), *sample.shape[1:])).index_add_(0, people, sample)
    return sums / counts.to(sums).reshape(-1, *[1] * (sums.dim() - 1))


def _zeros_like(p: Tensor) -> Tensor:
    return torch.zeros(p.shape, dtype=torch.float64)


class GhostOptimizer(PrivateOptimizer):
    """Contracts the sums of layers from what the backward pass of `RecordLosses` leaves."""

    @property
    def keeps_full_gradients(self) -> bool:
        """Whether the error keeps gradients without a cap, which autograd can sum: no certificate depends on it."""
        return bool(self.residual) and type(error_feedback_of(self.rule).cap) is Unclipped

    def before_first_pass(self) -> None:
        """Clear the gradients and norms that the backward pass writes."""
        self.batch_state.require_backward_allowed()
        self.require_same_parameters()
        self.call = None
        for p in self.trained:
            p.grad = p.grad_sample = p._norm_sample = None

    def begin_piece(self, is_first: bool) -> None:
        """Add the full gradients to the error, if it keeps them, and clear them."""
        if self.residual and is_first:
            self.begin_sums()
        for number, p in enumerate(self.trained):
            if self.keeps_full_gradients:
                self.residual[number].add_(to_whole(p.grad, self.noise.grid.unit))
            p.grad = None

    def add_piece(self, calls: list[LayerRows], norms: list[Tensor]) -> None:
        """Add the clipped gradients of a piece to the sums of its batch, and capped ones to the error.

        Parameters
        ----------
        calls : list of LayerRows
            What the sums of layers are contracted from, emptied; those of other layers are in `p.grad_sample`.
        norms : list of Tensor
            The lengths by which records are clipped, for each group.
        """
        if has_too_many_terms(calls):
            self.batch_state.add_fault(_TOO_LONG)
        self.count_records(norms)
        if self.residual and not self.keeps_full_gradients:
            capped = self.factors(error_feedback_of(self.rule).cap, norms)
            self._add_clipped(list(calls), capped, self.residual.__getitem__)
        self._add_clipped(calls, self.factors(self.clip, norms), self.sum_of)
        for p in self.trained:
            p.grad = p.grad_sample = None  # `p.grad` is of the check of layers, and could be taken for a gradient

    def _add_clipped(self, calls: list[LayerRows], factors: list[Tensor], total_of: Callable[[int], Tensor]) -> None:
        numbers = {p: number for number, p in enumerate(self.trained)}
        for p, total in sums_of(calls, dict(zip(self.trained, factors, strict=True))):  # a layer is in one group
            total_of(numbers[p]).add_(total.cpu().round_())
        for number, p in enumerate(self.trained):
            if p.grad_sample is not None:
                add_whole(p.grad_sample, factors[number], total_of(number))

    def clip_and_accumulate(self) -> None:
        """Do nothing: the backward pass has added to the sums, and `BatchState.end_piece` refuses a step if not."""
