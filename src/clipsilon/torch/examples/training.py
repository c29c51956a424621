"""One training loop for all of paper 3's experiments: SGD on shuffled batches, DPSGD-GC and DiceSGD on Poisson ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from clipsilon._core import checks
from clipsilon.privacy.warning import PrivacyWarning
from clipsilon.torch.engine import PrivacyEngine
from clipsilon.torch.examples.images import Images

OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


class TrainingConfig(NamedTuple):
    """The settings of a training; with data and a model they determine its result.

    Parameters
    ----------
    algorithm : str
        "sgd", which neither clips nor adds noise, "dpsgd", "dice" or "correlated".
    step : float
        Step size, the optimiser's `lr`.
    batch, steps : int
        Expected batch size and number of steps.
    seed : int, default 0
        Seed of batches and noise.
    optimizer : str, default "SGD"
        "SGD", "Adam" or "AdamW".
    clip, error_clip, residual_cap, clipping, noise_multiplier, quantile
        As in `PrivacyEngine.make_private`.
    warm_up : int, default 0
        Steps in which the step size grows linearly; after them it decreases to zero. With 0 it is constant.
    """

    algorithm: str
    step: float
    batch: int
    steps: int
    seed: int = 0
    optimizer: str = "SGD"
    clip: float = 1.0
    error_clip: float | None = None
    residual_cap: float | None = None
    clipping: str = "flat"
    noise_multiplier: float = 0.0
    warm_up: int = 0
    quantile: float | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings of the update, for the engine and for its rule."""
        feedback = {"error_clip": self.error_clip, "residual_cap": self.residual_cap}
        names = ("algorithm", "clip", "clipping", "noise_multiplier", "quantile")
        shared = {name: getattr(self, name) for name in names}
        order = {"poisson_sampling": self.algorithm != "correlated"}
        return shared | order | (feedback if self.algorithm == "dice" else {})

    def epochs(self, records: int) -> int | None:
        """Return the number of passes that correlated noise is planned for; None for other algorithms."""
        return -(-self.steps // -(-records // self.batch)) if self.algorithm == "correlated" else None


class Training(NamedTuple):
    """What the training loop needs.

    Parameters
    ----------
    model, optimizer, criterion, loader
        The private ones, or the plain ones if the algorithm is "sgd".
    schedule : LRScheduler
        Sets the step size after each step.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    criterion: Callable[..., Any]
    loader: DataLoader[Any]
    schedule: torch.optim.lr_scheduler.LRScheduler


class _Tables(TensorDataset):
    """Tensors whose rows a loader takes together: one by one takes longer than the step of a small model."""

    def __getitem__(self, number: int) -> tuple[Tensor, ...]:
        return tuple(tensor[[number]] for tensor in self.tensors)

    def __getitems__(self, numbers: list[int]) -> list[tuple[Tensor, ...]]:
        return [tuple(tensor[numbers] for tensor in self.tensors)] if numbers else []


def _join_tables(tables: list[tuple[Tensor, ...]]) -> list[Tensor]:
    return [parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*tables, strict=True)]


def prepare_training(config: TrainingConfig, model: nn.Module, records: TensorDataset) -> Training:
    """Make the model private, unless the algorithm is "sgd", and seed batches and noise.

    Parameters
    ----------
    config : TrainingConfig
        The settings.
    model : nn.Module
        The model, which is trained in place.
    records : TensorDataset
        Inputs and targets.

    Returns
    -------
    Training
        For `train_with_pauses`.
    """
    make = checks.choice("optimizer", config.optimizer, OPTIMIZERS)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, criterion = make(trained, lr=config.step), nn.CrossEntropyLoss()
    batches = torch.Generator().manual_seed(2 * config.seed)
    loader = DataLoader(
        _Tables(*records.tensors), batch_size=config.batch, shuffle=True, generator=batches, collate_fn=_join_tables
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _schedule(config.warm_up, config.steps))
    if config.algorithm == "sgd":
        return Training(model, optimizer, criterion, loader, schedule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # about the paper's own algorithm, which has no cap
        model, optimizer, criterion, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=loader,
            grad_sample_mode="ghost",
            noise_generator=torch.Generator().manual_seed(2 * config.seed + 1),
            epochs=config.epochs(len(records)),
            **config.settings(),
        )
    return Training(model, optimizer, criterion, loader, schedule)


def train_with_pauses(
    training: Training, steps: int, every: int, loss: Callable[[Training, list[Tensor]], Any]
) -> Iterator[int]:
    """Train, and pause regularly with the model in evaluation mode.

    Parameters
    ----------
    training : Training
        From `prepare_training`.
    steps : int
        Number of steps.
    every : int
        Steps between pauses; there is also a pause after the last step.
    loss : callable
        Computes the loss of a batch.

    Yields
    ------
    int
        The number of steps taken so far.
    """
    batches = chain.from_iterable(repeat(training.loader))
    training.model.train()
    for number, batch in enumerate(islice(batches, steps), start=1):
        training.optimizer.zero_grad()
        loss(training, batch).backward()
        training.optimizer.step()
        training.schedule.step()
        if number % every == 0 or number == steps:
            training.model.eval()
            yield number
            training.model.train()


def _schedule(warm_up: int, steps: int) -> Callable[[int], float]:
    """Return the factor of the step size after a number of steps: linear up, then linear down."""
    if warm_up == 0:
        return lambda done: 1.0
    return lambda done: min((done + 1) / warm_up, max(0.0, (steps - done) / (steps - warm_up)))


@torch.no_grad()  # type: ignore[untyped-decorator]
def apply_layers(layers: nn.Module, data: Images) -> Images:
    """Return what frozen layers make of each image, on which the layers after them can be trained.

    Parameters
    ----------
    layers : nn.Module
        The first layers of a model. They must be public, such as pretrained ones, and treat records one by one: the
        privacy of the layers after them is then that of a training of the whole model with these layers frozen.
    data : Images
        Images to train on and to test on.

    Returns
    -------
    Images
        The same records with the outputs in place of the images.
    """
    layers.eval()

    def applied(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([layers(some) for some in images.split(1000)]), labels

    return Images(applied(*data.train), applied(*data.test), data.classes)


def train_images(config: TrainingConfig, model: nn.Module, data: Images) -> float:
    """Train a model of images, and return its test accuracy.

    Parameters
    ----------
    config : TrainingConfig
        The settings.
    model : nn.Module
        The model, which is trained in place.
    data : Images
        Images to train on and to test on.

    Returns
    -------
    float
        Fraction of test images that are classified correctly.
    """
    training = prepare_training(config, model, TensorDataset(*data.train))
    for _ in train_with_pauses(training, config.steps, config.steps, _image_loss):
        pass
    return float(accuracy(training.model.eval(), *data.test))


def _image_loss(training: Training, batch: list[Tensor]) -> Any:
    images, labels = batch
    return training.criterion(training.model(images), labels)


@torch.no_grad()  # type: ignore[untyped-decorator]
def accuracy(model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> float:
    """Return the fraction of images that the model classifies correctly.

    Parameters
    ----------
    model : callable
        Maps images to scores, (records, classes).
    images, labels : Tensor
        Images, and the number of the class of each.

    Returns
    -------
    float
        Between 0 and 1.
    """
    pieces = zip(images.split(1000), labels.split(1000), strict=True)
    return sum(int((model(some).argmax(1) == right).sum()) for some, right in pieces) / len(labels)
