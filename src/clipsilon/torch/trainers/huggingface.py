"""`PrivateTrainer`: the `Trainer` of Hugging Face with private steps.

The `Trainer` keeps its loop, schedules, logs, evaluation and folders of checkpoints. Batches, clipping, noise and the
state to resume from are the engine's:

- `get_train_dataloader` makes model, optimiser and loader private, once. Accelerate sees neither the private loader nor
  the private model; it wraps the private optimiser, whose `step` it passes on.
- `training_step` calls the private model, in pieces if gradients are to be accumulated.
- A folder of a checkpoint has `PRIVATE_STATE` in the place of `optimizer.pt` and `scheduler.pt`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from clipsilon._core import checks
from clipsilon._core.extras import needs_package

try:
    import accelerate  # noqa: F401
    from transformers import Trainer, TrainingArguments
except ModuleNotFoundError:
    raise ImportError(
        needs_package("clipsilon.torch.trainers.huggingface", "transformers and accelerate", "clipsilon[trainers]")
    ) from None

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_utils import TrainOutput, get_last_checkpoint, unwrap_peft_model

from clipsilon.torch.engine import PrivacyEngine
from clipsilon.torch.loss_check import plain
from clipsilon.torch.optimizer import PrivateOptimizer
from clipsilon.torch.trainers.arguments import (
    check_charged,
    check_datasets,
    check_privacy,
    needs_length,
    private_arguments,
)
from clipsilon.torch.trainers.shared_rows import repeat_shared_rows

__all__ = ["PrivateTrainer"]

PRIVATE_STATE = "private_training.pt"  # in the folder of a checkpoint; as private as the data
_IGNORED = -100  # the label of tokens that the loss does not cover
_NOT_PRIVATE = ("loss", "train_loss", "grad_norm")  # entries of logs that are computed from records, without noise


class PrivateTrainer(Trainer):
    """Train a model of `transformers` by DP-SGD or DiceSGD in the loop of its `Trainer`.

    A batch holds `per_device_train_batch_size` × `gradient_accumulation_steps` records on average, and is processed in
    pieces of at most `per_device_train_batch_size` if the second number is above 1. The loss of a model of language is
    the mean over each record's own tokens; other models keep their own losses, which are checked.

    Parameters
    ----------
    model : nn.Module
        The model to train, in float32. Parameters to freeze must be frozen before.
    args : TrainingArguments
        Settings of the training. Those that would change what is certified are refused; a `data_seed` seeds the
        batches, so that nothing is certified.
    privacy : dict
        Arguments of `PrivacyEngine.make_private`, or of `make_private_with_epsilon` where `target_epsilon` is among
        them, without `module`, `optimizer`, `data_loader`, `criterion` and `epochs`, which are the trainer's.
    engine : PrivacyEngine, optional
        The engine, for another adjacency.
    log_loss : bool, default False
        Whether logs, and what `train` returns, show the training loss, which is not private. Losses on the evaluation
        set are always logged.
    **others
        Other arguments of `Trainer`, except `model_init`. A `compute_loss_func` returns the mean over the records or,
        with ghost clipping, one loss per record.

    Attributes
    ----------
    engine : PrivacyEngine
        States the privacy of all steps: `trainer.engine.statement()`.

    Formal guarantee
    ----------------
    That of `PrivacyEngine`, for all steps of all calls of `train`, with those before the checkpoint that a training is
    resumed from. It covers every model that was saved, but not the training losses, nor what is evaluated on records
    of the training set, nor the files `private_training.pt`.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        privacy: Mapping[str, Any],
        engine: PrivacyEngine | None = None,
        log_loss: bool = False,
        **others: Any,
    ):
        if others.pop("model_init", None) is not None:
            raise ValueError("model_init must be None, since each call of train would begin another training.")
        self._privacy = check_privacy(privacy)
        self._log_loss = checks.flag("log_loss", log_loss)
        pieces = args.gradient_accumulation_steps > 1
        self._most_rows = args.per_device_train_batch_size if pieces else None
        check_datasets(others.get("train_dataset"), others.get("eval_dataset"))
        super().__init__(model, private_arguments(args, has_people="groups" in self._privacy), **others)
        self.engine = PrivacyEngine() if engine is None else engine
        self._private: nn.Module | None = None
        self._private_optimizer: PrivateOptimizer | None = None
        self._private_criterion: Any = None
        self._private_loader: DataLoader[Any] | None = None
        self._is_resumed = False

    # Model, optimiser and loader

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the private loader; the first call makes model and optimiser private."""
        if self._private_loader is None:
            self._make_private()
        assert self._private_loader is not None
        return self._private_loader

    def _make_private(self) -> None:
        loader = self._plain_loader()
        self.model.train()
        repeat_shared_rows(self.model)
        optimizer = self.create_optimizer()
        settings = {**self._privacy, **self._own_settings(loader)}
        has_target = "target_epsilon" in settings
        make = self.engine.make_private_with_epsilon if has_target else self.engine.make_private
        parts = make(module=self.model, optimizer=optimizer, data_loader=loader, **settings)
        self._private, self._private_optimizer, self._private_loader = parts[0], parts[1], parts[-1]
        self._private_criterion = parts[2] if len(parts) > 3 else None
        self.optimizer = self._private_optimizer

    def _own_settings(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """Return the settings of the engine that follow from those of the trainer; a budget is charged once."""
        found: dict[str, Any] = {}
        if self._privacy.get("grad_sample_mode") == "ghost":
            found["criterion"] = self._record_losses
        if self._is_resumed and "budget" in self._privacy:
            found["budget"] = None
        is_charged = self._privacy.get("budget") is not None and not self._is_resumed
        if is_charged or needs_length(self._privacy):
            steps = self.args.max_steps / len(loader) if self.args.max_steps > 0 else self.args.num_train_epochs
            found["epochs"] = math.ceil(steps)
        return found

    def _plain_loader(self) -> DataLoader[Any]:
        """Return a loader of the training set, whose draws are replaced."""
        if self.train_dataset is None:
            raise ValueError("train_dataset must be given to train, got None.")
        seed, workers = self.args.data_seed, self.args.dataloader_num_workers
        return DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            collate_fn=_PlainBatches(self._get_collator_with_removed_columns(self.data_collator)),
            num_workers=workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
            generator=None if seed is None else torch.Generator().manual_seed(seed),
            persistent_workers=self.args.dataloader_persistent_workers and workers > 0,
        )

    def _wrap_model(
        self, model: nn.Module, training: bool = True, dataloader: DataLoader[Any] | None = None
    ) -> nn.Module:
        """Return the private model to train, so that Accelerate leaves it alone, and the plain one to evaluate."""
        if not training:
            return super()._wrap_model(model, training, dataloader)  # type: ignore[no-any-return]
        if self._private is None:
            self._make_private()  # where a subclass has a loader of its own, of whose batches nothing is certified
        assert self._private is not None
        if self._private._module is not self.model:
            raise RuntimeError("trainer.model must stay the model that was given, which was made private.")
        return self._private

    # Steps

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Compute the loss of a batch and its gradients per record, piece by piece; return the mean loss.

        Parameters
        ----------
        model : nn.Module
            The private model.
        inputs : dict
            The batch.
        num_items_in_batch : int, optional
            Not used: a mean over the tokens of all records would mix records.
        """
        assert self._private_optimizer is not None
        model.train()
        pieces = list(_split(self._prepare_inputs(inputs), self._most_rows))
        losses = []
        for number, piece in enumerate(pieces):
            is_last = number == len(pieces) - 1
            if self._most_rows is not None:
                self._private_optimizer.signal_skip_step(not is_last)
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, piece)
            loss.backward()
            losses.append(plain(loss.detach()).to(self.args.device))
            if not is_last:
                self._private_optimizer.step()
                self._private_optimizer.zero_grad()
        return torch.stack(losses).mean()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the mean of one loss per record in training, and what `Trainer` computes in evaluation.

        Parameters
        ----------
        model : nn.Module
            The private model in training, the plain one in evaluation.
        inputs : dict
            The batch, or a piece of it.
        return_outputs : bool
            Whether the model's outputs are returned as well.
        num_items_in_batch : int, optional
            The tokens of the batch, in evaluation only.

        Returns
        -------
        Tensor or RecordLosses
            The loss, with the outputs if they are wanted.
        """
        if self._private is None or model is not self._private:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs.get("labels")
        has_tokens = self.compute_loss_func is None and _is_tokens(labels)
        if self._private_criterion is None and not has_tokens:
            return super().compute_loss(model, inputs, return_outputs)
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        if self._private_criterion is not None:
            loss = self._private_criterion(outputs, labels)
        else:
            loss = self._record_losses(outputs, labels).mean()
        return (loss, outputs) if return_outputs else loss

    def _record_losses(self, outputs: Any, labels: Tensor | None) -> Tensor:
        """Return one loss per record: the user's, or the mean cross-entropy over the record's own tokens."""
        if self.compute_loss_func is not None:
            losses: Tensor = self.compute_loss_func(outputs, labels, num_items_in_batch=None)
            return losses
        if labels is None or labels.is_floating_point():
            raise ValueError(
                "compute_loss_func must be given with grad_sample_mode='ghost' where labels are not numbers of classes "
                "or tokens, and return one loss per record, got None."
            )
        return record_losses(outputs.logits, labels, shift=self._has_next_tokens and labels.dim() > 1)

    @property
    def _has_next_tokens(self) -> bool:
        """Whether the scores of a token are those of the next one, as `Trainer` finds out for its own losses."""
        name = type(unwrap_peft_model(self.model)).__name__
        return bool(self._loss_shifts_labels) or name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()

    def _get_grad_norm(self, model: nn.Module, grad_norm: float | None = None) -> None:
        """Measure nothing: before the step, gradients are not private."""

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return 0: the sizes of batches are not private, and checkpoints would show their sum."""
        return 0

    # Checkpoints and logs

    def train(self, resume_from_checkpoint: str | bool | None = None, **others: Any) -> TrainOutput:
        """Train, and log the certified ε of all steps.

        Parameters
        ----------
        resume_from_checkpoint : str or bool, optional
            The folder of a checkpoint, or True for the last one in `output_dir`. Model, optimiser, schedule, noise and
            the steps taken so far are those of its `private_training.pt`.
        **others
            Other arguments of `Trainer.train`, except `trial`.

        Returns
        -------
        TrainOutput
            Its `metrics` have `epsilon` and `delta`. Its `training_loss` is NaN unless losses are logged.
        """
        if others.get("trial") is not None:
            raise ValueError("trial must be None: the trials of a search would each spend privacy.")
        folder = _checkpoint_folder(resume_from_checkpoint, str(self.args.output_dir))
        self._is_resumed = folder is not None
        output = super().train(folder, **others)
        if self.engine.steps:
            stated = self.engine.statement()
            output.metrics.update(epsilon=stated.certified, delta=stated.delta)
            self.log({"epsilon": stated.certified, "delta": stated.delta})
        return output if self._log_loss else output._replace(training_loss=math.nan)

    def log(self, logs: dict[str, float], *args: Any) -> None:
        """Log what is private or public; training losses only where they are wanted."""
        if not self._log_loss:
            for name in _NOT_PRIVATE:
                logs.pop(name, None)
        super().log(logs, *args)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        assert self._private is not None
        assert self._private_optimizer is not None
        self.engine.save_checkpoint(
            path=Path(output_dir) / PRIVATE_STATE,
            module=self._private,
            optimizer=self._private_optimizer,
            checkpoint_dict={"scheduler": self.lr_scheduler.state_dict()},
        )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        assert self._private is not None
        assert self._private_optimizer is not None
        kept = self.engine.load_checkpoint(
            path=Path(checkpoint) / PRIVATE_STATE, module=self._private, optimizer=self._private_optimizer
        )
        check_charged(self._privacy.get("budget"), self.engine.charged_to)
        self.lr_scheduler.load_state_dict(kept["scheduler"])


def record_losses(logits: Tensor, labels: Tensor, *, shift: bool) -> Tensor:
    """Return the mean cross-entropy over each record's own tokens, or of its one label.

    Parameters
    ----------
    logits : Tensor
        Scores, (records, classes) or (records, length, tokens).
    labels : Tensor
        Classes, (records,), or tokens, (records, length); −100 where the loss does not cover one.
    shift : bool
        Whether the scores of a token are compared with the label of the next one, as in models that predict it.

    Returns
    -------
    Tensor
        One loss per record.
    """
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    if labels.dim() == 1:
        return functional.cross_entropy(logits, labels, reduction="none", ignore_index=_IGNORED)
    losses = functional.cross_entropy(logits.mT, labels, reduction="none", ignore_index=_IGNORED)
    return losses.sum(1) / (labels != _IGNORED).sum(1).clamp(min=1)


def _is_tokens(labels: Any) -> bool:
    return isinstance(labels, Tensor) and labels.dim() == 2 and not labels.is_floating_point()


def _split(inputs: dict[str, Any], most_rows: int | None) -> Iterator[dict[str, Any]]:
    """Yield a batch in pieces of so many rows."""
    records = next((len(t) for t in inputs.values() if isinstance(t, Tensor) and t.dim()), 0)
    if most_rows is None or records <= most_rows:
        yield inputs
        return
    for start in range(0, records, most_rows):
        rows = slice(start, start + most_rows)
        yield {name: value[rows] if _has_rows(value, records) else value for name, value in inputs.items()}


def _has_rows(value: Any, records: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == records


def _checkpoint_folder(resume: str | bool | None, output_dir: str) -> str | None:
    """Return the folder to resume from; raise ValueError if there is none, or if it has no private state."""
    if resume is None or resume is False:
        return None
    folder = get_last_checkpoint(output_dir) if resume is True else str(resume)
    if folder is None or not (Path(folder) / PRIVATE_STATE).is_file():
        raise ValueError(
            f"resume_from_checkpoint must name a folder with {PRIVATE_STATE}, without which the steps taken so far are "
            f"not known, got {folder or output_dir!r}."
        )
    return folder


class _PlainBatches:
    """A collator whose batches are plain dictionaries, which checks can follow."""

    def __init__(self, collate: Any):
        self._collate = collate

    def __call__(self, records: list[Any]) -> dict[str, Any]:
        return dict(self._collate(records))
