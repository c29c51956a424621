"""`PrivateTraining`: a callback that makes the steps of a Lightning `Trainer` private.

When a fit begins, the callback makes model, optimiser and loader private and puts them in the places where Lightning
keeps the plain ones. The private model is an attribute of the `LightningModule` that hides the plain one for the
duration of the fit: what the module registers, moves, switches and saves stays the plain model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from clipsilon._core import checks
from clipsilon._core.extras import needs_package

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:
    raise ImportError(needs_package("clipsilon.torch.trainers.lightning", "lightning", "clipsilon[trainers]")) from None

from clipsilon.torch.engine import PrivacyEngine
from clipsilon.torch.optimizer import PrivateOptimizer
from clipsilon.torch.trainers.arguments import (
    BITS,
    ONE_PROCESS,
    Setting,
    check_charged,
    check_privacy,
    needs_length,
)
from clipsilon.torch.trainers.shared_rows import repeat_shared_rows

__all__ = ["PrivateTraining"]

_KEY = "clipsilon"  # of the entry in checkpoints
_SETTINGS = [
    Setting("accumulate_grad_batches", 1, "batches are drawn as a whole; give the loader a larger batch_size instead"),
    Setting("gradient_clip_val", None, "it clips the mean of a batch; privacy={'clip': …} clips each record"),
    Setting("overfit_batches", 0, "the engine draws the batches, from all records"),
    Setting("reload_dataloaders_every_n_epochs", 0, "a loader that is made anew does not draw private batches"),
    Setting("world_size", 1, ONE_PROCESS),
]
_TRYING = ("LearningRateFinder", "BatchSizeFinder")  # callbacks that make steps of their own


class PrivateTraining(Callback):
    """Train a model by DP-SGD or DiceSGD in the loop of Lightning's `Trainer`, in hooks mode.

    Parameters
    ----------
    privacy : dict
        Arguments of `PrivacyEngine.make_private`, or of `make_private_with_epsilon` where `target_epsilon` is among
        them, without `module`, `optimizer`, `data_loader`, `criterion`, `epochs` and `grad_sample_mode`.
    attribute : str, default "model"
        The attribute of the `LightningModule` that is the model to train. `training_step` must call it.
    engine : PrivacyEngine, optional
        The engine, for another adjacency.

    Attributes
    ----------
    engine : PrivacyEngine
        States the privacy of all steps: `callback.engine.statement()`.

    Formal guarantee
    ----------------
    That of `PrivacyEngine`, for all steps of the fit, with those before the checkpoint that it is resumed from. It
    covers every model that was saved, but neither what the module logs of training batches, nor the checkpoints, which
    hold the state of the noise.
    """

    def __init__(self, privacy: Mapping[str, Any], *, attribute: str = "model", engine: PrivacyEngine | None = None):
        self._privacy = check_privacy(privacy)
        if self._privacy.get("grad_sample_mode", "hooks") != "hooks":
            raise ValueError(
                f"privacy must not have grad_sample_mode={self._privacy['grad_sample_mode']!r}: Lightning needs a loss "
                "that is a tensor, which ghost clipping does not have."
            )
        self._attribute = checks.text("attribute", attribute)
        self.engine = PrivacyEngine() if engine is None else engine
        self._private: nn.Module | None = None
        self._optimizer: PrivateOptimizer | None = None
        self._saved: dict[str, Any] | None = None  # of the checkpoint that the fit is resumed from

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse settings that would change the guarantee, before other callbacks can make steps.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        pl_module : LightningModule
            The module.
        stage : str
            "fit", or what needs no privacy.
        """
        if stage == "fit":
            _check_trainer(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make model, optimiser and loader private, and resume from a checkpoint if there is one.

        Parameters
        ----------
        trainer : Trainer
            The trainer, of one process and with one optimiser.
        pl_module : LightningModule
            The module, with the model to train in an attribute.
        """
        if len(trainer.optimizers) != 1:
            raise ValueError(f"configure_optimizers must return one optimiser, got {len(trainer.optimizers)}.")
        model = getattr(pl_module, self._attribute, None)
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"attribute must name the model that training_step calls, and the module has no such model, got "
                f"{self._attribute!r}."
            )
        model.train()
        repeat_shared_rows(model)
        trainer.fit_loop.setup_data()
        loader = _loader_of(trainer)
        settings = {**self._privacy, **self._planned(trainer, loader)}
        make = self.engine.make_private_with_epsilon if "target_epsilon" in settings else self.engine.make_private
        private, optimizer, batches = make(
            module=model, optimizer=trainer.optimizers[0], data_loader=loader, **settings
        )
        trainer.strategy.optimizers = [optimizer]
        trainer.fit_loop._combined_loader.flattened = [batches]
        pl_module.__dict__[self._attribute] = self._private = private
        self._optimizer = optimizer
        if self._saved is not None:
            self.engine._resume("ckpt_path", self._saved, private, optimizer)
            check_charged(self._privacy.get("budget"), self.engine.charged_to)
        iter(trainer.fit_loop._data_fetcher)  # which has begun with the plain loader

    def _planned(self, trainer: Trainer, loader: DataLoader[Any]) -> dict[str, Any]:
        """Return the number of epochs where it is needed; a budget is charged once."""
        is_resumed = self._saved is not None
        found: dict[str, Any] = {"budget": None} if is_resumed and "budget" in self._privacy else {}
        if not needs_length(self._privacy) and (is_resumed or self._privacy.get("budget") is None):
            return found
        ends = [trainer.max_epochs] if (trainer.max_epochs or -1) > 0 else []
        ends += [math.ceil(trainer.max_steps / len(loader))] if trainer.max_steps > 0 else []
        if not ends:
            raise ValueError("max_epochs of the Trainer must be given, so that the noise can be set, got none.")
        return {**found, "epochs": min(ends)}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the certified ε of the steps so far.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        pl_module : LightningModule
            The module.
        """
        stated = self.engine.statement()
        self.log_dict({"epsilon": stated.certified, "delta": stated.delta})

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write the private state in the place of the optimiser's.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        pl_module : LightningModule
            The module.
        checkpoint : dict
            What is about to be saved.
        """
        if self._private is not None and self._optimizer is not None:
            checkpoint[_KEY] = self.engine._content(self._private, self._optimizer, {})
            checkpoint["optimizer_states"] = []

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the private state until the fit begins that is resumed from it.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        pl_module : LightningModule
            The module.
        checkpoint : dict
            What was loaded.
        """
        if trainer.state.fn != "fit":  # a later fit is a training of its own, with noise of its own
            return
        if _KEY not in checkpoint:
            raise ValueError(
                "ckpt_path must name a checkpoint of a private training, without which the steps taken so far are not "
                "known, got one of another; to begin from a public model, load its weights beforehand."
            )
        self._saved = checkpoint[_KEY]

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the module its plain model back.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        pl_module : LightningModule
            The module.
        """
        pl_module.__dict__.pop(self._attribute, None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the module its plain model back.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        pl_module : LightningModule
            The module.
        exception : BaseException
            What ended the fit.
        """
        self.on_fit_end(trainer, pl_module)


def _loader_of(trainer: Trainer) -> DataLoader[Any]:
    loader = trainer.train_dataloader
    if not isinstance(loader, DataLoader):
        raise ValueError(f"train_dataloaders must be one DataLoader, got {type(loader).__name__}.")
    return loader


def _check_trainer(trainer: Any) -> None:
    """Raise ValueError if settings of Lightning's `Trainer` would change the guarantee."""
    for setting in _SETTINGS:
        value = getattr(trainer, setting.name)
        if value != setting.expected and (value or setting.expected):
            raise ValueError(
                f"{setting.name} of the Trainer must be {setting.expected!r}, got {value!r}: {setting.why}."
            )
    if trainer.precision not in ("32-true", "64-true"):
        raise ValueError(f"precision of the Trainer must be '32-true' or '64-true', got {trainer.precision!r}: {BITS}.")
    for callback in trainer.callbacks:
        if any(kind.__name__ in _TRYING for kind in type(callback).__mro__):
            raise ValueError(
                f"callbacks must not have {type(callback).__name__}, which tries settings on the records without noise."
            )
