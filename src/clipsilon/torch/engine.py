"""`PrivacyEngine`: makes a model, an optimiser and a data loader private, and states how private they are."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import torch

from clipsilon._core import checks
from clipsilon.privacy.calibration import calibrate
from clipsilon.privacy.certificate import ADJACENCIES, Certificate
from clipsilon.privacy.statement import Statement, about_seed, account
from clipsilon.privacy.warning import PrivacyWarning
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Epochs
from clipsilon.torch import checkpoint, generators, inputs
from clipsilon.torch.layers import register_conv1d
from clipsilon.torch.losses import RecordCriterion
from clipsilon.torch.models import GhostModel, HooksModel
from clipsilon.torch.optimizer import GhostOptimizer, HooksOptimizer, PrivateOptimizer
from clipsilon.torch.processes import unwrapped
from clipsilon.torch.rules import Settings, multiplier, rule_of
from clipsilon.torch.sampling import Batches, private_loader

_OPTIMIZERS = {"hooks": HooksOptimizer, "ghost": GhostOptimizer}


_NOISE = "Noise is drawn by PyTorch's generator, which is not cryptographic."
_COARSE = "Some parameters have fewer than 32 bits: that their sums and noise are rounded to those is not covered."
_GUESSABLE = "The loader's generator was given: whoever knows its seed knows who was drawn, which is to be secret."
_STRANGE = "Nothing can be certified: steps were made of batches that the loader of make_private did not draw."


class PrivacyEngine:
    """DP-SGD and DiceSGD for PyTorch models, used as Opacus's engine of the same name; one engine a training.

    Formal guarantee: `statement()` is `clipsilon.account` of the rule that runs, for the steps taken so far. It holds
    if each record's loss depends on this record alone, every layer treats records one by one, and the model's first
    parameters, the number of records and all settings were chosen without a look at the records. A record whose
    gradient is not finite stops the training.

    `adjacency` says which data sets are neighbours: "replace-one", "zero-out" or, for Poisson sampling, "add-remove",
    which is what Opacus reports.
    """

    def __init__(self, *, adjacency: str = "replace-one"):
        checks.choice("adjacency", adjacency, ADJACENCIES)
        self.adjacency = adjacency
        self.steps = 0  # taken so far
        self._delta = 1e-5
        self._rule: Rule | None = None

    def make_private(
        self,
        *,
        module: Any,
        optimizer: Any,
        data_loader: Any,
        noise_multiplier: float,
        criterion: Any = None,
        algorithm: str = "dice",
        clip: float = 1.0,
        error_clip: float | None = None,
        residual_cap: float | None = None,
        clipping: str = "flat",
        poisson_sampling: bool = True,
        grad_sample_mode: str = "hooks",
        loss_reduction: str = "mean",
        noise_generator: torch.Generator | None = None,
    ) -> tuple[Any, ...]:
        """The private (model, optimiser, loader), or with ghost clipping (model, optimiser, criterion, loader).

        `algorithm` is "dice" (paper 3, Algorithm 2; with Adam as the optimiser, Algorithm 3) or "dpsgd". `clip`,
        `error_clip` and `residual_cap` are C1, C2 (`clip` unless given) and C3 (no cap unless given); "dpsgd" has no
        use for the last two. `clipping="automatic"` normalises to these lengths (Algorithm 4). The noise on the *sum*
        of a batch has the deviation `noise_multiplier`·`clip`, and everything is divided by the loader's `batch_size`,
        which counts the records of all processes. With `poisson_sampling=False` batches are disjoint and shuffled anew
        in each pass; training for one pass is a single pass. `loss_reduction` says what the loss does over records in
        hooks mode, "mean" or "sum". A `noise_generator`'s noise hides nothing from those who know its seed.
        """
        inner, processes = unwrapped(module)
        settings = Settings(noise_multiplier, algorithm, clip, error_clip, residual_cap, clipping, poisson_sampling)
        rule, records = self._plan(settings, optimizer, data_loader)
        inputs.check_model(inner, grad_sample_mode)
        inputs.check_optimizer(optimizer, inner)
        inputs.check_criterion(criterion, grad_sample_mode, loss_reduction)
        inputs.check_generator(noise_generator)
        self._seeded = noise_generator is not None
        noise = noise_generator or generators.fresh(next(inner.parameters()).device)
        private = _OPTIMIZERS[grad_sample_mode](optimizer, rule, noise, processes)
        loader = self._watch(private, records, data_loader)
        return *_model_and_more(inner, private, criterion, loss_reduction), loader

    def _watch(self, optimizer: PrivateOptimizer, records: int, data_loader: Any) -> Any:
        """Count the optimiser's steps from here on, and draw its batches; returns the loader that does."""
        self._rule, self._records, processes = optimizer.rule, records, optimizer.processes
        self._coarse = any(p.dtype.itemsize < 4 for p in optimizer.trained)
        self._guessable = data_loader.generator is not None
        generator = generators.for_batches(data_loader, processes)
        self._batches = Batches(self._rule.sampling, records, generator, *processes)
        self._batches.on_pass = optimizer.begin_pass
        if not data_loader.num_workers:  # else batches are fetched ahead, and the next one says nothing of the last
            self._batches.on_batch = optimizer.begin_batch
        optimizer.on_step = self._count
        return private_loader(data_loader, self._batches)

    def make_private_with_epsilon(
        self, *, target_epsilon: float, target_delta: float, epochs: int, how: str = "certified", **settings: Any
    ) -> tuple[Any, ...]:
        """`make_private` with the least noise that certifies (ε, δ) after so many epochs, or with the paper's.

        `how` is "certified" or "paper"; `settings` are the arguments of `make_private` but for `noise_multiplier`.
        """
        if "noise_multiplier" in settings:
            raise ValueError("noise_multiplier must be left out where target_epsilon is given.")
        epsilon = checks.positive("target_epsilon", target_epsilon)
        delta = checks.open_fraction("target_delta", target_delta)
        chosen = {name: settings[name] for name in Settings._fields if name in settings}
        rule, records = self._plan(Settings(1.0, **chosen), settings.get("optimizer"), settings.get("data_loader"))
        steps = checks.count("epochs", epochs) * -(-records // rule.sampling.batch)
        rule = calibrate(rule, epsilon, delta, records, steps, how, self.adjacency)
        private = self.make_private(noise_multiplier=multiplier(rule), **settings)
        self._delta = delta
        return private

    def _plan(self, settings: Settings, optimizer: Any, data_loader: Any) -> tuple[Rule, int]:
        if self._rule is not None:
            raise ValueError("A PrivacyEngine is for one training, and this one has been used: make another.")
        records, batch = inputs.records_and_batch(data_loader)
        rule = rule_of(settings, type(optimizer).__name__, batch)
        rule.check_sampling(records, 1)
        if self.adjacency == "add-remove" and type(rule.sampling) is Epochs:
            raise ValueError(
                "poisson_sampling must be True for adjacency='add-remove', since disjoint batches depend on the number "
                "of records, got False."
            )
        return rule, records

    def _count(self, rows: int) -> None:
        self._batches.take(rows)
        self.steps += 1

    def statement(self, delta: float | None = None, steps: int | None = None) -> Statement:
        """What is certified and what is claimed, for the steps taken so far or for a number of `steps`.

        δ is the target's, or 1e-5, unless given.
        """
        rule = self._used()
        if steps is None and self.steps == 0:
            raise ValueError("steps must be given before any step has been taken.")
        taken = self._accountable() if steps is None else checks.count("steps", steps)
        stated = account(rule, self._records, taken, self._delta if delta is None else delta, self.adjacency)
        stated = about_seed(stated, self._seeded)
        if steps is None and self._batches.are_strange:
            warnings.warn(_STRANGE, PrivacyWarning, stacklevel=2)
            return _nothing_certified(stated, _STRANGE)
        besides = [_NOISE, *[_COARSE] * self._coarse, *[_GUESSABLE] * self._guessable]
        return replace(stated, reasons=(*stated.reasons, *besides))

    def get_epsilon(self, delta: float) -> float:
        """The certified ε of the steps taken so far; 0 before the first."""
        self._used()
        checks.open_fraction("delta", delta)
        return self.statement(delta).certified if self.steps else 0.0

    def _used(self) -> Rule:
        if self._rule is None:
            raise ValueError("make_private must be called first: there is nothing to state.")
        return self._rule

    def _accountable(self) -> int:
        """The steps taken; passes that were not finished count as if they had been, but for the last."""
        if type(self._used().sampling) is not Epochs:
            return self.steps
        return max(self.steps, (self._batches.passes - 1) * len(self._batches) + 1)

    def save_checkpoint(
        self, *, path: Any, module: Any, optimizer: Any, checkpoint_dict: dict[str, Any] | None = None
    ) -> None:
        """Write the model, the optimiser with its error, the accounting and both generators to a file.

        `checkpoint_dict` holds more to keep, such as a scheduler's state. Of several processes, the first one writes.
        Keep the file as private as the data.
        """
        content = {
            "identity": checkpoint.identity(self._used(), self._records),
            "module": module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "steps": self.steps,
            "batches": self._batches.state_dict(),
            "noise": optimizer.generator.get_state(),
            "seeded": self._seeded,
            "guessable": self._guessable,
            "more": checkpoint_dict or {},
        }
        if optimizer.processes.leads:  # the others' noise is never drawn, and must not take its place
            checkpoint.save(path, content)

    def load_checkpoint(self, *, path: Any, module: Any, optimizer: Any) -> dict[str, Any]:
        """Go on from a checkpoint of the same training, made private in the same way; returns `checkpoint_dict`.

        The noise goes on, too: of two trainings that differ after the same checkpoint, only one may be released.
        """
        content = checkpoint.load(path, checkpoint.identity(self._used(), self._records))
        checkpoint.check_shapes(path, content["module"], module)
        optimizer.load_state_dict(content["optimizer"])
        module.load_state_dict(content["module"])
        self.steps = content["steps"]
        self._batches.load_state_dict(content["batches"])
        optimizer.generator.set_state(content["noise"])
        self._seeded, self._guessable = content["seeded"], content["guessable"]
        return dict(content["more"])


def _model_and_more(inner: Any, optimizer: PrivateOptimizer, criterion: Any, loss_reduction: str) -> tuple[Any, ...]:
    """The private model and its optimiser, and for ghost clipping the criterion."""
    register_conv1d(inner)
    if not isinstance(optimizer, GhostOptimizer):
        return HooksModel(inner, loss_reduction=loss_reduction), optimizer
    model = GhostModel(inner, optimizer)
    return model, optimizer, RecordCriterion(model, optimizer, criterion)


def _nothing_certified(stated: Statement, reason: str) -> Statement:
    """The statement of a training that is not the one accounted for."""
    none = Certificate(None, (reason,))
    return replace(
        stated, certified=math.inf, claimed=None, claim_holds=None, reasons=(reason,), certificate=none, notes=(reason,)
    )
