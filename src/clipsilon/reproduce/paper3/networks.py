"""What paper 3's experiments share: sizes, noise, privacy, and trainings of networks that are kept.

Nothing here needs PyTorch before it is run: without it the experiments are listed, and say what they need.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from clipsilon.privacy.calibration import calibrate
from clipsilon.privacy.statement import account, shown
from clipsilon.reproduce.base import Lab

TUNING_SEED = 100  # of the first run that chooses a step; those that are reported have seeds 0, 1, …


class Scale(NamedTuple):
    """How large an experiment is, and the privacy that it is calibrated to."""

    source: str  # of the records: "digits", "restaurants", or a folder of the user's
    records: int
    batch: int
    steps: int
    epsilon: float
    delta: float
    seeds: int
    optimizer: str = "SGD"
    warm_up: int = 0
    tuning: int = 2  # how many runs choose each step

    def plan(self, algorithm: str, step: float, seed: int, **more: Any) -> Any:
        """A training's plan at this size."""
        from clipsilon.torch.examples.training import TrainingConfig

        return TrainingConfig(
            algorithm, step, self.batch, self.steps, seed, optimizer=self.optimizer, warm_up=self.warm_up, **more
        )


def paper_multiplier(scale: Scale, ratio: float = 1.0) -> float:
    """The noise, in units of C1 on the sum of a batch, that paper 3 prescribes for DiceSGD with C2 = ratio·C1.

    For C2 = C1 = C it is App. C.4's, of deviation √96·C·√(T·log(1/δ))/(N·ε) on the mean: Theorem 3.8's with
    G̃ = C1² + 2·C² and C2 for C. (As printed the theorem wants C ≥ B·C2.)
    """
    return _calibrated(scale, "paper", algorithm="dice", clipping="automatic") * float(np.sqrt((1 + 2 * ratio**2) / 3))


def certified_multiplier(scale: Scale, **update: Any) -> float:
    """The least noise, in the same units, that certifies the scale's ε for records that are replaced."""
    return _calibrated(scale, "certified", **update)


def _calibrated(scale: Scale, how: str, **update: Any) -> float:
    from clipsilon.torch.rules import UpdateSettings, build_rule, noise_multiplier

    rule = build_rule(UpdateSettings(1.0, **update), scale.optimizer, scale.batch)
    return noise_multiplier(calibrate(rule, scale.epsilon, scale.delta, scale.records, scale.steps, how))


def privacy(scale: Scale, plan: Any) -> tuple[str, str]:
    """The claimed and the certified ε of a training, as tables show them."""
    from clipsilon.torch.rules import UpdateSettings, build_rule

    if plan.algorithm == "sgd":
        return "none", "∞"
    rule = build_rule(UpdateSettings(**plan.settings()), plan.optimizer, plan.batch)
    statement = account(rule, scale.records, plan.steps, scale.delta)
    return shown(statement.claimed), shown(statement.certified)


def best(measure: Any, steps: Sequence[float], runs: int) -> float:
    """The step that measures largest on average over so many runs with seeds of their own; the first of equals."""
    if len(steps) == 1:
        return steps[0]
    found = [np.mean([measure(step, TUNING_SEED + run) for run in range(runs)]) for step in steps]
    return steps[int(np.argmax([value if np.isfinite(value) else -np.inf for value in found]))]


def image_scale(lab: Lab, seeds: int = 5) -> Scale:
    """Digits; or CIFAR at the paper's own size, where the user has named a folder with it."""
    folder = os.environ.get("CLIPSILON_CIFAR")
    seeds = 1 if lab.quick else seeds
    if folder:
        return Scale(folder, len(_images(folder).train[0]), 1000, 150, 2.0, 1e-5, seeds, tuning=1)
    return Scale("digits", 1437, 240, 24 if lab.quick else 48, 8.0, 1e-5, seeds, tuning=1 if lab.quick else 2)


def image_accuracy(source: str, name: str, plan: Any, start: Any = None) -> float:
    """A model's test accuracy after training, in per cent; `start` holds its first parameters, but for the head."""
    from clipsilon.torch.examples.models import image_model
    from clipsilon.torch.examples.training import train_images

    data = _images(source)
    model = image_model(name, data.shape, plan.seed)
    if start is not None:
        load(model, start)
    return 100.0 * train_images(plan, model, data)


@cache
def _images(source: str) -> Any:
    from clipsilon.torch.examples.images import images

    return images(source)


def pretrained(name: str, steps: int) -> dict[str, Any]:
    """A model's parameters, but for its head's, after training on printed digits, which are public."""
    from clipsilon.torch.examples.images import Images, printed_digits
    from clipsilon.torch.examples.models import image_model
    from clipsilon.torch.examples.training import TrainingConfig, train_images

    data = _images("digits")
    model = image_model(name, data.shape, seed=0)
    plan = TrainingConfig("sgd", 3e-3, 200, steps, optimizer="Adam", warm_up=steps // 10)
    train_images(plan, model, Images(printed_digits(), data.test, data.classes))
    return {key: value.numpy() for key, value in model.state_dict().items() if not key.startswith("head.")}


def load(model: Any, start: dict[str, Any]) -> None:
    """Give a model these parameters, and leave the others as they are."""
    import torch

    model.load_state_dict({key: torch.from_numpy(value) for key, value in start.items()}, strict=False)


class Image(NamedTuple):
    """A model on images, ready for trainings that are kept."""

    scale: Scale
    name: str
    start: Any

    def __call__(self, lab: Lab, plan: Any) -> float:
        """The test accuracy of a plan."""
        return float(lab.keep(image_accuracy, self.scale.source, self.name, plan, self.start))

    def accuracies(self, lab: Lab, plan: Any) -> list[float]:
        """The test accuracies of a plan with each of the scale's seeds."""
        return [self(lab, plan._replace(seed=seed)) for seed in range(self.scale.seeds)]

    def tuned(self, lab: Lab, steps: Sequence[float], algorithm: str, **update: Any) -> tuple[Any, list[float]]:
        """A plan with the best step, and the accuracies of its seeds."""

        def plans(step: float, seed: int) -> Any:
            return self.scale.plan(algorithm, step, seed, **update)

        step = best(lambda step, seed: self(lab, plans(step, seed)), steps, self.scale.tuning)
        return plans(step, 0), self.accuracies(lab, plans(step, 0))


def image(lab: Lab, name: str, scale: Scale) -> Image:
    """The CNN, new; or the ViT, which begins from printed digits as paper 3's begins from ImageNet."""
    begins = name == "ViT" and scale.source == "digits"
    return Image(scale, name, lab.keep(pretrained, name, 40 if lab.quick else 400) if begins else None)


def spread(values: Sequence[float]) -> str:
    """A mean, and the least and the largest."""
    return f"{np.mean(values):.1f} ({min(values):.1f}–{max(values):.1f})"
