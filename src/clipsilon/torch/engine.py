"""`PrivacyEngine`: makes a model, an optimiser and a data loader private, and states how private they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import DataLoader

from clipsilon._core import checks
from clipsilon._core.grouping import Grouping
from clipsilon._core.other_names import explain_other_names, refuse_other_names
from clipsilon.engine.checkpoint import CheckpointError
from clipsilon.privacy.budget import Budget, charge_to
from clipsilon.privacy.calibration import calibrate
from clipsilon.privacy.certificate import require_public_size
from clipsilon.privacy.statement import SEEDED, Statement, about_people, about_seed, account, fail_closed
from clipsilon.privacy.warning import PrivacyWarning, warn_about_delta
from clipsilon.rules.clipping import Adaptive
from clipsilon.rules.feedback import remembers
from clipsilon.rules.noise import Correlated
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Cyclic, Epochs
from clipsilon.torch import checkpoint, inputs
from clipsilon.torch.batch_state import BatchState
from clipsilon.torch.clipping import clip_groups
from clipsilon.torch.correlated_noise import make_noise
from clipsilon.torch.exact_sums import charged_rule, is_capped
from clipsilon.torch.generators import make_batch_stream, make_stream
from clipsilon.torch.guard import COARSE, Guard
from clipsilon.torch.layers import register_conv1d
from clipsilon.torch.lineage import FOREIGN, Lineage, follow_states, has_other_training, register, take_spent
from clipsilon.torch.losses import RecordCriterion
from clipsilon.torch.models import GhostModel, HooksModel
from clipsilon.torch.optimizer import ERROR_REPLACED, GhostOptimizer, HooksOptimizer, PrivateOptimizer
from clipsilon.torch.processes import unwrap_parallel
from clipsilon.torch.rules import Passes, UpdateSettings, build_rule, is_uncapped, sampling_of
from clipsilon.torch.rules import noise_multiplier as noise_multiplier_of
from clipsilon.torch.sampling import PrivateBatchSampler, make_private_loader

_OPTIMIZERS = {"hooks": HooksOptimizer, "ghost": GhostOptimizer}

_MUCH_NOISE = 2.0**20  # to begin a calibration with, so that noise on the count of an adaptive clip sets no limit

_LOW_BITS = (
    "PyTorch may compute a record's gradient with other low bits when other records are in the batch: this is not "
    "covered."
)
_COUNTED_LOW_BITS = (
    "With an adaptive clip such bits may also decide whether a record whose norm is at the threshold counts as "
    "clipped: do not choose a first clip that is the norm of many gradients, such as normalised ones."
)
_GUESSABLE = (
    "The loader's generator was given: whoever knows its seed knows which records were drawn, which must stay secret."
)
_OTHER_ENGINE = (
    "Nothing can be certified: another engine has trained on this data set as well, and a statement covers one "
    "training; statement(steps=…) of each engine states the parts, which add up."
)
_NO_CAP = (
    "algorithm='dice' without residual_cap is certified by a weak bound only, since a record may leave any length in "
    "the error; set residual_cap (not with clipping='automatic'), and look at engine.statement(steps=…) first."
)
_ERROR_UNCHARGED = (
    "Nothing can be certified: with error feedback, what records left in the error of another training is fed back in "
    "this one, and the budget file was charged with the steps of each alone; resume by load_checkpoint."
)
_NOISE_REPEATED = (
    "Nothing can be certified: with correlated noise, the engine went back to a checkpoint that it had gone on from, "
    "so that records took part more often, and closer to one another, than its noise was planned for."
)
_NOISE_SPLIT = (
    "Nothing can be certified: correlated noise is planned for all steps of one training, and the model was resumed "
    "from another one; resume by load_checkpoint, or add up the statements of both."
)
_MODEL_UNSEEN = (
    "Nothing can be certified, since the model could not be checked: its answer for a record must depend on this "
    "record alone; call the model that make_private returned, with tensors of one row per record, and let it return "
    "tensors."
)
_LOSS_UNSEEN = (
    "Nothing can be certified, since the loss could not be checked: it must be the mean or the sum of one loss per "
    "record; compute it from the model's outputs by PyTorch's functions, and call its backward()."
)
_INPUTS_UNSEEN = (
    "The way from the loader to the model could not be checked: each record must reach the model in one row, computed "
    "from this record alone."
)
_REDUCTION_UNSEEN = "The reduction of the loss could not be checked: it must be the one that loss_reduction says."


class _Charge(NamedTuple):
    """What a budget file is charged with."""

    budget: Budget | str | PathLike[str]
    epochs: int
    rule: Rule
    records: int
    is_seeded: bool
    is_guessable: bool
    has_people: bool  # whether records are people with several rows
    max_rows: int | None

    @property
    def steps(self) -> int:
        """The planned number of steps."""
        return _planned_steps(self.rule, self.records, self.epochs)

    def limit(self, state: BatchState, lineage: Lineage) -> None:
        """Let the training take no more than what was charged."""
        path = Path(self.budget) if isinstance(self.budget, str | PathLike) else self.budget.path
        lineage.budget, state.most_steps = path.resolve(), self.steps
        state.most_passes = self.epochs if type(self.rule.sampling) is Epochs else None


def _planned_steps(rule: Rule, records: int, epochs: int) -> int:
    """Return the number of steps in so many passes."""
    return epochs * -(-records // sampling_of(rule).batch)


def _entries(optimizer: torch.optim.Optimizer) -> int:
    """Return the number of entries of all parameters that are trained."""
    return sum(p.numel() for group in optimizer.param_groups for p in group["params"] if p.requires_grad)


def _plan_charge(
    budget: Budget | str | PathLike[str] | None, epochs: int | None, rule: Rule, records: int, about: dict[str, Any]
) -> _Charge | None:
    """Return what a budget file is charged with, None without one; `about` comes from `_terms`."""
    if budget is None:
        if epochs is not None and not isinstance(rule.noise, Correlated):
            raise ValueError(f"epochs must be left out without a budget, got {epochs!r}.")
        return None
    return _Charge(budget, checks.count("epochs", epochs), rule, records, **about)


def _terms(seeds: tuple[Any, Any], grouping: Grouping | None, max_rows: int | None) -> dict[str, Any]:
    """Return what a statement must say of a training; `seeds` are the generators that were given, or None."""
    is_seeded, is_guessable = (given is not None for given in seeds)
    people = {"has_people": grouping is not None, "max_rows": max_rows}
    return {"is_seeded": is_seeded, "is_guessable": is_guessable, **people}


@dataclass
class _Training:
    """What the engine states the privacy of."""

    rule: Rule
    records: int
    batches: PrivateBatchSampler
    state: BatchState
    lineage: Lineage
    dataset: Any
    parameters: int  # entries of all parameters that are trained
    is_ghost: bool  # whether the rounding of sums is charged
    is_seeded: bool  # whether the noise can be drawn again
    is_guessable: bool  # whether the batches can be drawn again
    guard: Guard | None = None
    has_people: bool = False  # whether records are people with several rows
    max_rows: int | None = None
    inherited: list[str] = field(default_factory=list)  # checks that were not possible before a checkpoint

    @property
    def is_replayed(self) -> bool:
        """Whether noise and batches come from seeds, so that going back to a checkpoint repeats the same releases."""
        return self.is_seeded and self.is_guessable

    def resume(self, content: dict[str, Any], lineage: dict[str, Any]) -> None:
        """Go on where a checkpoint of a certain lineage was made; what was said of steps taken before stays true."""
        is_used = self.state.steps > 0
        self.lineage.resume(content["steps"], **lineage)
        self.batches.load_state_dict(content["batches"], content["steps"])
        self.is_seeded = content["seeded"] or (is_used and self.is_seeded)
        self.is_guessable = content["guessable"] or (is_used and self.is_guessable)
        self.inherited = list(content.get("unchecked", []))
        path, steps, passes = content.get("charged") or (None, None, None)
        if path is not None:
            self.lineage.budget, self.state.most_steps, self.state.most_passes = Path(path), steps, passes

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with this training."""
        return checkpoint.identity(self.rule, self.records, has_people=self.has_people)

    def faults(self) -> list[str]:
        """Return why nothing can be certified of this training."""
        shared = [_OTHER_ENGINE] if has_other_training(self.dataset, self.lineage) else []
        foreign = [FOREIGN] if self.state.is_foreign else []
        is_split = self.lineage.budget is not None and self.lineage.earlier and remembers(self.rule.feedback)
        is_resumed = isinstance(self.rule.noise, Correlated) and self.lineage.earlier
        split = [_ERROR_UNCHARGED] * bool(is_split) + [_NOISE_SPLIT] * bool(is_resumed)
        return [*dict.fromkeys([*foreign, *self.state.faults, *self.lineage.faults(), *shared, *split])]

    def unchecked(self) -> list[str]:
        """Return which checks, without which nothing can be certified, were not possible in steps of several rows."""
        if self.guard is None or self.state.largest_step < 2:
            return self.inherited
        model, loss = not self.guard.has_checked_model, not self.guard.has_checked_loss
        moved = self.has_people and not self.guard.has_checked_inputs
        return [*[_MODEL_UNSEEN] * model, *[_LOSS_UNSEEN] * loss, *[_INPUTS_UNSEEN] * moved]

    def faults_ahead(self) -> list[str]:
        """Return what else holds of the steps wherever they are counted: seeds, and checks that were not possible."""
        return [*[SEEDED] * self.is_seeded, *[_GUESSABLE] * self.is_guessable, *self.unchecked()]

    def untested(self) -> list[str]:
        """Return what was not tested, and is assumed."""
        if self.guard is None or self.state.largest_step < 2:
            return []
        inputs, reduction = not self.guard.has_checked_inputs, not self.guard.has_checked_reduction
        return [*[_INPUTS_UNSEEN] * inputs, *[_REDUCTION_UNSEEN] * reduction]


class PrivacyEngine:
    """Train PyTorch models by DP-SGD and its relatives; used as Opacus's engine of the same name, for one training.

    Parameters
    ----------
    adjacency : str, default "replace-one"
        Which data sets are neighbours: "replace-one" or "zero-out". Opacus names "add-remove" and computes what is
        "zero-out" here: its sampling rate, 1 in the number of batches, changes with the number of records.

    Formal guarantee
    ----------------
    `statement()` is `clipsilon.account` of the rule that runs, for the steps taken so far. It holds if each record's
    loss depends on this record alone, every layer treats records one by one, and the model's first parameters, the
    number of records and all settings were chosen independently of the records. The first two are checked on a few
    records of the first batch and, at random, of later ones. A record whose gradient is not finite stops the training.
    """

    @explain_other_names
    def __init__(self, *, adjacency: str = "replace-one"):
        require_public_size(adjacency)
        self.adjacency = adjacency
        self._delta = 1e-5
        self._training: _Training | None = None

    @property
    def steps(self) -> int:
        """The number of steps taken so far, with those of trainings that this one was resumed from."""
        return 0 if self._training is None else self._training.lineage.steps

    @property
    def charged_to(self) -> Path | None:
        """The budget file that the planned steps were charged to, before a checkpoint or here; None without."""
        return None if self._training is None else self._training.lineage.budget

    @staticmethod
    def get_compatible_module(module: nn.Module) -> nn.Module:
        """Return a copy of a model in which layers that are refused are replaced, as far as Opacus can do so."""
        return inputs.replace_layers(module)

    @staticmethod
    def validate(
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        data_loader: DataLoader[Any] | None = None,
    ) -> None:
        """Raise ValueError if `make_private` would refuse a model, its optimiser or its loader.

        Parameters
        ----------
        module : nn.Module
            The model.
        optimizer : torch.optim.Optimizer, optional
            Its optimiser.
        data_loader : DataLoader, optional
            The loader of the records.
        """
        inner, _ = unwrap_parallel(module)
        inputs.check_model(inner, "hooks")
        if optimizer is not None:
            inputs.check_optimizer(optimizer, inner)
        if data_loader is not None:
            inputs.records_and_batch(data_loader)
            inputs.check_collate(data_loader)

    @classmethod
    def is_compatible(cls, **parts: Any) -> bool:
        """Return whether `validate` raises no error; it takes the same arguments."""
        try:
            cls.validate(**parts)
        except ValueError:
            return False
        return True

    @explain_other_names
    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        criterion: Callable[..., Tensor] | None = None,
        algorithm: str = "dpsgd",
        clip: float = 1.0,
        error_clip: float | None = None,
        residual_cap: float | None = None,
        clipping: str = "flat",
        quantile: float | None = None,
        poisson_sampling: bool = True,
        grad_sample_mode: str = "hooks",
        loss_reduction: str = "mean",
        noise_generator: torch.Generator | None = None,
        groups: ArrayLike | None = None,
        max_rows: int | None = None,
        delta: float = 1e-5,
        budget: Budget | str | PathLike[str] | None = None,
        epochs: int | None = None,
    ) -> tuple[Any, ...]:
        """Make a model, its optimiser and its loader private.

        Parameters
        ----------
        module : nn.Module
            The model, in training mode, which may be wrapped for several processes. It is trained in place.
        optimizer : torch.optim.Optimizer
            An optimiser of the model's parameters. It receives the private update as its gradient.
        data_loader : DataLoader
            A loader of a dataset with a length. Its `batch_size`, which counts the records of all processes, is the
            expected batch size; sums over a batch are divided by it.
        noise_multiplier : float
            Standard deviation of the noise on the *sum* of a batch, in units of `clip`; at least 0. With an adaptive
            clip, the noise multiplier of sum and count together, as in `clipsilon.AdaptiveDPSGD`; for "correlated",
            that of w in `clipsilon.CorrelatedSGD`.
        criterion : callable, optional
            The loss function, which ghost clipping needs. In hooks mode its `reduction` is compared with
            `loss_reduction`.
        algorithm : str, default "dpsgd"
            "dpsgd"; "dice" (paper 3, Algorithm 2; with Adam as the optimiser, Algorithm 3), which warns unless
            `residual_cap` is given; or "correlated", whose noise later steps take back in part
            (`clipsilon.CorrelatedSGD`), for `poisson_sampling=False` and a number of `epochs` that is known beforehand.
        clip : float, default 1.0
            C1, the bound on the norm of each record's gradient; with an adaptive clip, the first threshold, which must
            not be chosen by looking at the records.
        error_clip : float, optional
            C2, the bound on the error that is fed back, at least `clip`; `clip` unless given. For "dice" only.
        residual_cap : float, optional
            C3, the bound on what a record adds to the error, at least `clip`; infinite unless given. For "dice"
            only.
        clipping : str, default "flat"
            "flat"; "automatic" to normalise gradients and error to `clip` and `error_clip` (Algorithm 4); for "dpsgd"
            only, "per-layer" to clip the gradient of each of L layers to `clip`/√L, or "adaptive" to let the threshold
            follow a private `quantile` of the norms, with noise in proportion to it (`clipsilon.AdaptiveDPSGD`). All
            have the same certificate.
        quantile : float, optional
            The fraction of records that should not be clipped, above 0 and below 1; for clipping "adaptive", which
            needs it. See `clipsilon.clipping.suggest_quantile`: the median is far too small for most models.
        poisson_sampling : bool, default True
            Whether batches are drawn by Poisson sampling. Otherwise they are disjoint and shuffled anew in each pass,
            or for "correlated" once, for all passes; training for one pass is a single pass.
        grad_sample_mode : str, default "hooks"
            "hooks" to compute each record's gradient, "ghost" to bound its norm only, where layers are linear or
            embeddings.
        loss_reduction : str, default "mean"
            How the loss is reduced over records in hooks mode, "mean" or "sum".
        noise_generator : torch.Generator, optional
            Seeds the noise, for reproducible experiments: whoever knows its state can undo the noise. Noise is drawn
            by the library's own generator in any case.
        groups : array-like, optional
            The id of the person of each item of the dataset, for people with several of them: a record is then a
            person. People are drawn, and the mean of the gradients of a person's items is clipped; `batch_size` counts
            people. In hooks mode, in one process, without workers of the loader.
        max_rows : int, optional
            The largest number of items per person, with `groups`: the first ones are used. All by default.
        delta : float, default 1e-5
            The δ at which `statement` states ε unless told otherwise, and at which `budget` is charged.
        budget : Budget or path, optional
            A budget file (`clipsilon.Budget`). It is charged here with all steps of `epochs`; a step beyond them is
            refused. A training that is resumed from a checkpoint needs no second charge.
        epochs : int, optional
            Number of passes, for `budget`, which is charged with them, and for "correlated", whose noise is planned for
            them. A step beyond them is refused.

        Returns
        -------
        tuple
            The private model, optimiser and loader; with ghost clipping the private model, optimiser, criterion and
            loader.
        """
        inner, processes = unwrap_parallel(module)
        settings = UpdateSettings(
            noise_multiplier, algorithm, clip, error_clip, residual_cap, clipping, poisson_sampling, quantile
        )
        grouping = inputs.group_items(data_loader, groups, max_rows)
        rule, records = self._plan(settings, optimizer, data_loader, grouping, epochs)
        if grouping is not None:
            inputs.check_people(grad_sample_mode, processes, data_loader)
        inputs.check_model(inner, grad_sample_mode)
        inputs.check_optimizer(optimizer, inner)
        inputs.check_criterion(criterion, grad_sample_mode, loss_reduction)
        inputs.check_generator(noise_generator)
        inputs.check_collate(data_loader)
        inputs.check_order(rule, data_loader)
        self._delta = checks.open_fraction("delta", delta)
        about = _terms((noise_generator, data_loader.generator), grouping, max_rows)
        planned = _plan_charge(budget, epochs, rule, records, about)
        is_ghost = grad_sample_mode == "ghost"
        self._charge(planned, optimizer, is_ghost, processes.is_first)
        state = BatchState(fetches_ahead=bool(data_loader.num_workers), is_ordered=type(rule.sampling) is Cyclic)
        if epochs is not None and isinstance(rule.noise, Correlated):
            state.most_steps = _planned_steps(rule, records, epochs)
        length = _entries(optimizer), records, state.most_steps
        noise = make_noise(rule, is_ghost, length, make_stream(noise_generator))
        private = _OPTIMIZERS[grad_sample_mode](optimizer, rule, noise, processes, state)
        private.groups, private.has_people = clip_groups(clipping, inner, private.trained), grouping is not None
        batches = PrivateBatchSampler(
            sampling_of(rule), records, make_batch_stream(data_loader, processes), state, processes, grouping
        )
        made = _model_and_criterion(inner, private, criterion, loss_reduction)
        own = private.lineage, data_loader.dataset, private.parameters
        self._training = _Training(rule, records, batches, state, *own, is_ghost, guard=made[0].guard, **about)
        _begin_lineage(self._training, inner, private, planned)
        if is_uncapped(rule):
            warnings.warn(_NO_CAP, PrivacyWarning, stacklevel=2)
        return *made, make_private_loader(data_loader, batches, made[0].guard.follow_batch)

    def make_private_with_epsilon(
        self, *, target_epsilon: float, target_delta: float, epochs: int, how: str = "certified", **settings: Any
    ) -> tuple[Any, ...]:
        """Call `make_private` with the noise that a target (ε, δ) needs.

        Parameters
        ----------
        target_epsilon, target_delta : float
            The privacy after all epochs; δ is between 0 and 1.
        epochs : int
            Number of passes over the data.
        how : str, default "certified"
            "certified" for the least noise that certifies the target, "paper" for the noise that the paper prescribes.
        **settings
            The arguments of `make_private` except `noise_multiplier`, `delta` and `epochs`.

        Returns
        -------
        tuple
            As from `make_private`.
        """
        if "noise_multiplier" in settings:
            raise ValueError("noise_multiplier must be left out where target_epsilon is given.")
        refuse_other_names("PrivacyEngine.make_private_with_epsilon", settings)
        epsilon = checks.positive("target_epsilon", target_epsilon)
        delta = checks.open_fraction("target_delta", target_delta)
        chosen = {name: settings[name] for name in UpdateSettings._fields if name in settings}
        loader = settings.get("data_loader")
        grouping = inputs.group_items(loader, settings.get("groups"), settings.get("max_rows"))
        planned = UpdateSettings(_MUCH_NOISE, **chosen)
        epochs = checks.count("epochs", epochs)
        rule, records = self._plan(planned, settings.get("optimizer"), loader, grouping, epochs)
        steps = _planned_steps(rule, records, epochs)
        rule = calibrate(rule, epsilon, delta, records, steps, how, self.adjacency)
        if settings.get("budget") is not None or isinstance(rule.noise, Correlated):
            settings = {**settings, "epochs": epochs}
        multiplier = noise_multiplier_of(rule) * (1 + 2.0**-40)  # not less noise, whatever was rounded
        return self.make_private(noise_multiplier=multiplier, delta=delta, **settings)

    def _charge(
        self, planned: _Charge | None, optimizer: torch.optim.Optimizer, is_ghost: bool, is_first: bool
    ) -> None:
        """Charge the planned steps to the budget file, if there is one, in the first of several processes."""
        if planned is None:
            return
        rule = charged_rule(planned.rule, _entries(optimizer), planned.steps, is_ghost)
        stated = account(rule, planned.records, planned.steps, self._delta, self.adjacency)
        stated = about_people(stated, planned.max_rows) if planned.has_people else stated
        stated = about_seed(stated, planned.is_seeded)
        if planned.is_guessable:
            stated = fail_closed(stated, _GUESSABLE)
        if is_first:
            charge_to(planned.budget, stated, lambda key: None)

    def _plan(
        self,
        settings: UpdateSettings,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any],
        grouping: Grouping | None,
        epochs: int | None,
    ) -> tuple[Rule, int]:
        """Return the rule and the number of records of a training with these settings."""
        if self._training is not None:
            raise ValueError("A PrivacyEngine is for one training, and this one has been used: make another.")
        records, batch = inputs.records_and_batch(data_loader)
        records = records if grouping is None else grouping.people
        passes = None if epochs is None else Passes(checks.count("epochs", epochs), -(-records // batch))
        rule = build_rule(settings, type(optimizer).__name__, batch, passes)
        rule.check_sampling(records, 1)
        return rule, records

    def statement(self, delta: float | None = None, steps: int | None = None) -> Statement:
        """State what is certified and what is claimed.

        Parameters
        ----------
        delta : float, optional
            The δ at which ε is stated; the target's δ, or 1e-5, unless given.
        steps : int, optional
            State the privacy of this number of steps, drawn by the private loader, instead of the steps taken so far.
            With correlated noise, all planned steps are stated in any case.

        Returns
        -------
        Statement
            With `certified` infinite, and the reasons first, if a generator was given for the noise or to the loader,
            steps were made of batches that the private loader did not draw, a check of the model or of
            the loss failed or was not possible, fewer than 32 bits were used, the model was resumed from a training
            with other settings, or another engine has trained on the data set; `nominal` is what would be certified
            otherwise.
        """
        training = self._used()
        if steps is None and self.steps == 0:
            raise ValueError("steps must be given before any step has been taken.")
        counted = _accountable_steps(training, steps)
        rule = charged_rule(training.rule, training.parameters, counted, training.is_ghost)
        stated = account(rule, training.records, counted, self._delta if delta is None else delta, self.adjacency)
        stated = about_people(stated, training.max_rows) if training.has_people else stated
        stated = about_seed(stated, training.is_seeded)
        faults = training.faults() if steps is None else training.state.faults
        if faults:
            return close_statement(stated, faults)
        warn_about_delta(stated.delta, training.records, stacklevel=2, unit=stated.unit)
        if training.is_guessable:
            stated = fail_closed(stated, _GUESSABLE)
        for fault in training.unchecked() if steps is None else ():
            stated = fail_closed(stated, fault)
        at_threshold = [_COUNTED_LOW_BITS] * isinstance(training.rule.clip, Adaptive)
        besides = [_LOW_BITS, *at_threshold, *training.untested()]
        return replace(stated, reasons=(*stated.reasons, *besides))

    @explain_other_names
    def get_epsilon(self, delta: float) -> float:
        """Return the certified ε of the steps taken so far; 0 before the first one."""
        self._used()
        checks.open_fraction("delta", delta)
        return self.statement(delta).certified if self.steps else 0.0

    def _used(self) -> _Training:
        if self._training is None:
            raise ValueError("make_private must be called first: there is nothing to state.")
        return self._training

    def _used_with(self, optimizer: PrivateOptimizer) -> _Training:
        """Return the training; raise ValueError if an optimiser, whose noise is saved or replaced, is of another."""
        training = self._used()
        if getattr(optimizer, "batch_state", None) is not training.state:
            raise ValueError(
                "optimizer must be the one that make_private of this engine has returned, got another "
                f"{type(optimizer).__name__}."
            )
        return training

    @explain_other_names
    def save_checkpoint(
        self,
        *,
        path: str | PathLike[str],
        module: nn.Module,
        optimizer: PrivateOptimizer,
        checkpoint_dict: dict[str, Any] | None = None,
    ) -> None:
        """Write the model, the optimiser with its error, the accounting and both generators to a file.

        Keep the file as private as the data. With several processes, the first one writes it.

        Parameters
        ----------
        path : path-like
            The file.
        module : nn.Module
            The private model.
        optimizer : PrivateOptimizer
            The private optimiser.
        checkpoint_dict : dict, optional
            More to keep, such as a scheduler's state: tensors and plain values.
        """
        content = self._content(module, optimizer, checkpoint_dict or {})
        if optimizer.processes.is_first:  # the others never draw noise, and their generators must not be saved
            checkpoint.save(path, content)

    def _content(self, module: nn.Module, optimizer: PrivateOptimizer, more: dict[str, Any]) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        training = self._used_with(optimizer)
        return {
            "format": checkpoint.FORMAT,
            "identity": training.identity,
            "module": module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "steps": training.state.steps,
            "lineage": {"run": training.lineage.run, "earlier": training.lineage.earlier},
            "batches": training.batches.state_dict(),
            "noise": optimizer.noise.stream.get_state(),
            "noise_memory": optimizer.noise.get_memory(),
            "seeded": training.is_seeded,
            "guessable": training.is_guessable,
            "unchecked": training.unchecked(),
            "charged": _charged(training),
            "more": more,
        }

    @explain_other_names
    def load_checkpoint(
        self, *, path: str | PathLike[str], module: nn.Module, optimizer: PrivateOptimizer
    ) -> dict[str, Any]:
        """Resume from a checkpoint of the same training, made private in the same way.

        The noise resumes, too: of two trainings that continue from the same checkpoint, only one may be released. An
        engine that has itself gone on from the checkpoint draws new noise and new batches, and keeps the steps that it
        took since counted; with a `residual_cap` or correlated noise, it certifies nothing any more.

        Parameters
        ----------
        path : path-like
            The file.
        module : nn.Module
            The private model.
        optimizer : PrivateOptimizer
            The private optimiser.

        Returns
        -------
        dict
            The `checkpoint_dict` that was saved.

        Raises
        ------
        CheckpointError
            If the file is not a checkpoint, or is one of another training: of other settings, or, if the steps of
            this engine were charged to a budget file, of an engine that it was not resumed from.
        """
        self._used()
        return self._resume(str(path), checkpoint.load(path), module, optimizer)

    def _resume(
        self, source: str, content: dict[str, Any], module: nn.Module, optimizer: PrivateOptimizer
    ) -> dict[str, Any]:
        """Resume from what `_content` has returned; `source` is for messages."""
        training = self._used_with(optimizer)
        checkpoint.check(source, content, training.identity)
        checkpoint.check_shapes(source, content["module"], module)
        checkpoint.check_memory(source, content.get("noise_memory", {}), optimizer.trained)
        lineage = content.get("lineage", {"run": training.lineage.run, "earlier": {}})
        if training.lineage.budget is not None and training.state.steps and lineage["run"] != training.lineage.run:
            raise CheckpointError(
                f"{source} is of another training, whose steps the charge of this engine does not cover; load it by a "
                "new engine."
            )
        optimizer.load_state_dict(content["optimizer"])
        module.load_state_dict(content["module"])
        if training.lineage.has_left(lineage["run"], content["steps"]) and not training.is_replayed:
            optimizer.noise.stream.renew()
            training.batches.begin_anew()
            if isinstance(training.rule.noise, Correlated):
                training.state.add_fault(_NOISE_REPEATED)
            if is_capped(training.rule):
                training.state.add_fault(ERROR_REPLACED)
        else:
            training.resume(content, lineage)
            optimizer.noise.stream.set_state(content["noise"])
            optimizer.noise.set_memory(content.get("noise_memory", {}))
        return dict(content["more"])


def _charged(training: _Training) -> tuple[str, int | None, int | None] | None:
    """Return the budget file of a training and what it was charged with, as plain values."""
    state, path = training.state, training.lineage.budget
    return None if path is None else (str(path), state.most_steps, state.most_passes)


def _accountable_steps(training: _Training, steps: int | None) -> int:
    """Return the steps to account for: those asked for, or those taken, of which all passes but the last are whole.

    With correlated noise all planned steps count: that training is stopped before may depend on what it released.
    """
    asked, most = None if steps is None else checks.count("steps", steps), training.state.most_steps
    if isinstance(training.rule.noise, Correlated) and most is not None:
        if asked is not None and asked > most:
            raise ValueError(f"steps must be at most the {most} that noise was planned for, got {asked}.")
        return most
    if asked is not None:
        return asked
    if type(training.rule.sampling) is not Epochs:
        return training.lineage.steps
    return max(training.lineage.steps, (training.lineage.passes - 1) * len(training.batches) + 1)


def _model_and_criterion(
    inner: nn.Module, optimizer: PrivateOptimizer, criterion: Callable[..., Tensor] | None, loss_reduction: str
) -> tuple[Any, ...]:
    """Return the private model and its optimiser, and for ghost clipping the criterion."""
    register_conv1d(inner)
    if not isinstance(optimizer, GhostOptimizer):
        hooked = HooksModel(inner, loss_reduction=loss_reduction)
        hooked.guard = Guard(hooked, optimizer)
        return hooked, optimizer
    assert criterion is not None  # check_criterion has refused it
    model = GhostModel(inner, optimizer)
    model.guard = Guard(model, optimizer)
    return model, optimizer, RecordCriterion(model, optimizer, criterion)


def _begin_lineage(training: _Training, inner: nn.Module, optimizer: PrivateOptimizer, planned: _Charge | None) -> None:
    """Take over what the optimiser was loaded with, and note data set, precision and budget file."""
    if planned is not None:
        planned.limit(training.state, training.lineage)
    settings = training.identity
    training.lineage.settings = repr(sorted(settings.items()))
    training.lineage.faults_ahead = training.faults_ahead
    training.lineage.add(take_spent(optimizer.param_groups))
    follow_states(inner, training.lineage)
    register(training.dataset, training.lineage)
    if any(p.dtype.itemsize < 4 for p in optimizer.trained):
        training.state.add_fault(COARSE)


def close_statement(stated: Statement, faults: list[str]) -> Statement:
    """Return the statement of a training of which nothing can be certified; each fault is a reason."""
    if FOREIGN in faults:
        warnings.warn(FOREIGN, PrivacyWarning, stacklevel=3)
    for fault in reversed(faults):
        stated = fail_closed(stated, fault)
    return replace(stated, claimed=None, claim_holds=None, reasons=tuple(faults), notes=tuple(faults))
