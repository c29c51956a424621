"""One training loop for all of paper 3's experiments: SGD on shuffled batches, DPSGD-GC and DiceSGD on Poisson's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from clipsilon._core import checks
from clipsilon.torch.engine import PrivacyEngine
from clipsilon.torch.examples.images import Images

OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


class Plan(NamedTuple):
    """What decides a training, but for its data and its model; `PrivacyEngine.make_private` says what most mean."""

    algorithm: str  # "sgd" (neither clipped nor noisy), "dpsgd" or "dice"
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
    warm_up: int = 0  # steps in which the step size grows; after them it falls to zero. 0: it is constant

    def settings(self) -> dict[str, Any]:
        """The settings of the update, for the engine and for its rule."""
        feedback = {"error_clip": self.error_clip, "residual_cap": self.residual_cap}
        shared = {name: getattr(self, name) for name in ("algorithm", "clip", "clipping", "noise_multiplier")}
        return shared | (feedback if self.algorithm == "dice" else {})


class Training(NamedTuple):
    """A training that is ready: the loop below needs no more."""

    model: Any
    optimizer: Any
    criterion: Any
    loader: Any
    schedule: Any


def prepared(plan: Plan, model: nn.Module, records: TensorDataset) -> Training:
    """The model, made private unless the plan says "sgd"; the seed decides on batches and noise."""
    make: Any = checks.choice("optimizer", plan.optimizer, OPTIMIZERS)
    model.train()
    optimizer, criterion = make(model.parameters(), lr=plan.step), nn.CrossEntropyLoss()
    batches = torch.Generator().manual_seed(2 * plan.seed)
    loader: Any = DataLoader(records, batch_size=plan.batch, shuffle=True, generator=batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _schedule(plan.warm_up, plan.steps))
    if plan.algorithm == "sgd":
        return Training(model, optimizer, criterion, loader, schedule)
    model, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        criterion=criterion,
        data_loader=loader,
        grad_sample_mode="ghost",
        noise_generator=torch.Generator().manual_seed(2 * plan.seed + 1),
        **plan.settings(),
    )
    return Training(model, optimizer, criterion, loader, schedule)


def stops(training: Training, steps: int, every: int, loss: Callable[[Training, Any], Any]) -> Iterator[int]:
    """Train for so many steps, and stop at every so many, and at the last, to let the model be looked at.

    `loss` makes the loss of a batch; what is given at a stop is the number of steps taken.
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
    """Linear up, then linear down."""
    if warm_up == 0:
        return lambda done: 1.0
    return lambda done: min((done + 1) / warm_up, max(0.0, (steps - done) / (steps - warm_up)))


def train_images(plan: Plan, model: nn.Module, data: Images) -> float:
    """Train, and return the test accuracy."""
    training = prepared(plan, model, TensorDataset(*data.train))
    for _ in stops(training, plan.steps, plan.steps, _image_loss):
        pass
    return float(accuracy(training.model.eval(), *data.test))


def _image_loss(training: Training, batch: list[Tensor]) -> Any:
    images, labels = batch
    return training.criterion(training.model(images), labels)


@torch.no_grad()  # type: ignore[untyped-decorator]
def accuracy(model: Any, images: Tensor, labels: Tensor) -> float:
    """The share of images whose label the model finds."""
    pieces = zip(images.split(1000), labels.split(1000), strict=True)
    return sum(int((model(some).argmax(1) == right).sum()) for some, right in pieces) / len(labels)
