"""What paper 3's experiments with networks share: their scale, noise and privacy, and stored trainings.

PyTorch is imported only when an experiment runs; without it the experiments are still listed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray

from clipsilon.privacy.calibration import calibrate
from clipsilon.privacy.statement import account, format_epsilon
from clipsilon.reproduce.base import Lab

if TYPE_CHECKING:
    import torch

    from clipsilon.rules.rule import Rule as Rule
    from clipsilon.torch.examples.images import Images as Images
    from clipsilon.torch.examples.training import TrainingConfig as TrainingConfig

Parameters = dict[str, NDArray[Any]]  # of a network, by name

TUNING_SEED = 100  # seed of the first run that selects a step; reported runs have the seeds 0, 1, …
_MUCH_NOISE = 2.0**20  # to begin a calibration with; with little, an adaptive clip has none left for its count


class Scale(NamedTuple):
    """The size of an experiment, and the privacy to which it is calibrated.

    Parameters
    ----------
    source : str
        "digits", "mnist", "restaurants", or a folder with the user's data.
    records, batch, steps : int
        Number of records, expected batch size and number of steps.
    epsilon, delta : float
        The privacy to which the noise is calibrated.
    seeds : int
        Number of reported runs.
    optimizer : str, default "SGD"
        Name of the PyTorch optimizer.
    warm_up : int, default 0
        Steps during which the step size grows; 0 keeps it constant.
    tuning : int, default 2
        Number of runs that select each step size.
    """

    source: str
    records: int
    batch: int
    steps: int
    epsilon: float
    delta: float
    seeds: int
    optimizer: str = "SGD"
    warm_up: int = 0
    tuning: int = 2

    def plan(self, algorithm: str, step: float, seed: int, **more: Any) -> TrainingConfig:
        """Return the plan of a training at this scale.

        Parameters
        ----------
        algorithm : {"sgd", "dpsgd", "dice", "correlated"}
            The update rule.
        step : float
            The step size.
        seed : int
            Seed of the model and the training.
        **more
            Further fields of `TrainingConfig`.

        Returns
        -------
        TrainingConfig
            What determines the training, except for its data and model.
        """
        from clipsilon.torch.examples.training import TrainingConfig

        return TrainingConfig(
            algorithm, step, self.batch, self.steps, seed, optimizer=self.optimizer, warm_up=self.warm_up, **more
        )


def paper_multiplier(scale: Scale, ratio: float = 1.0) -> float:
    """Return the noise that paper 3 prescribes for DiceSGD with C2 = ratio·C1, in units of C1 on the sum of a batch.

    For C2 = C1 = C it is the noise of App. C.4, with standard deviation √96·C·√(T·log(1/δ))/(N·ε) on the mean, as in
    Theorem 3.8 with G̃ = C1² + 2·C² and C2 in place of C. (As printed, the theorem requires C ≥ B·C2.)
    """
    return _calibrated(scale, "paper", algorithm="dice", clipping="automatic") * float(np.sqrt((1 + 2 * ratio**2) / 3))


def certified_multiplier(scale: Scale, **update: Any) -> float:
    """Return the least noise, in the same units, that certifies the ε of the scale under replace-one."""
    return _calibrated(scale, "certified", **update)


def _calibrated(scale: Scale, how: str, **update: Any) -> float:
    from clipsilon.torch.rules import noise_multiplier

    rule, steps = _rule_and_steps(scale, scale.plan(step=1.0, seed=0, noise_multiplier=_MUCH_NOISE, **update))
    return noise_multiplier(calibrate(rule, scale.epsilon, scale.delta, scale.records, steps, how))


def _rule_and_steps(scale: Scale, plan: TrainingConfig) -> tuple[Rule, int]:
    """Return the rule of a plan, and its steps; with correlated noise, those of whole passes."""
    from clipsilon.torch.rules import Passes, UpdateSettings, build_rule

    epochs = plan.epochs(scale.records)
    passes = None if epochs is None else Passes(epochs, -(-scale.records // plan.batch))
    rule = build_rule(UpdateSettings(**plan.settings()), plan.optimizer, plan.batch, passes)
    return rule, plan.steps if passes is None else passes.steps


def privacy(scale: Scale, plan: TrainingConfig) -> tuple[str, str]:
    """Return the claimed and the certified ε of a training, as text."""
    if plan.algorithm == "sgd":
        return "none", "∞"
    rule, steps = _rule_and_steps(scale, plan)
    statement = account(rule, scale.records, steps, scale.delta)
    return format_epsilon(statement.claimed), format_epsilon(statement.certified)


def best_step(measure: Callable[[float, int], float], steps: Sequence[float], runs: int) -> float:
    """Return the step with the largest mean measure.

    Parameters
    ----------
    measure : callable
        Maps a step and a seed to a number; larger is better, and NaN is worst.
    steps : sequence of float
        The candidates. A single candidate is returned without being measured.
    runs : int
        Number of seeds per step, different from the seeds of reported runs.

    Returns
    -------
    float
        The best step; the first one in a tie.
    """
    if len(steps) == 1:
        return steps[0]
    found = [float(np.mean([measure(step, TUNING_SEED + run) for run in range(runs)])) for step in steps]
    return steps[int(np.argmax([value if np.isfinite(value) else -np.inf for value in found]))]


def image_scale(lab: Lab, seeds: int = 5) -> Scale:
    """Return the scale for digits, or for CIFAR at the paper's size if `CLIPSILON_CIFAR` names a folder with it."""
    folder = os.environ.get("CLIPSILON_CIFAR")
    seeds = 1 if lab.quick else seeds
    if folder:
        return Scale(folder, len(stored_images(folder).train[0]), 1000, 150, 2.0, 1e-5, seeds, tuning=1)
    return Scale("digits", 1437, 240, 24 if lab.quick else 48, 8.0, 1e-5, seeds, tuning=1 if lab.quick else 2)


def image_accuracy(
    source: str, name: str, plan: TrainingConfig, start: Parameters | None = None, frozen: int = 0
) -> float:
    """Train an image model, or its last layers, and return its test accuracy.

    Parameters
    ----------
    source : str
        "digits", "mnist" or a folder with CIFAR.
    name : {"CNN", "ViT"}
        The architecture.
    plan : TrainingConfig
        The training.
    start : dict, optional
        Initial parameters; those that are left out, such as the head's, are random.
    frozen : int, default 0
        Number of first layers that are not trained; −1 for all but the last.

    Returns
    -------
    float
        Accuracy in per cent.
    """
    from clipsilon.torch.examples.models import image_model
    from clipsilon.torch.examples.training import train_images

    data = stored_images(source)
    model = image_model(name, data.shape, plan.seed)
    if start is not None:
        load(model, start)
    return 100.0 * train_images(plan, model[frozen:], stored_outputs(source, model[:frozen]))


_frozen: dict[str, Images] = {}  # the outputs that were used last


def stored_outputs(source: str, layers: torch.nn.Sequential) -> Images:
    """Return the outputs of frozen layers for a source's images, once for consecutive trainings with these layers.

    Parameters
    ----------
    source : str
        As in `stored_images`.
    layers : nn.Sequential
        The first layers of a model; with none, the images themselves are returned.

    Returns
    -------
    Images
        What the layers after them are trained on.
    """
    from clipsilon.torch.examples.training import apply_layers

    if not len(layers):
        return stored_images(source)
    key = joblib.hash((source, str(layers), parameters_of(layers)))
    if key not in _frozen:
        _frozen.clear()  # before the next are computed: those of MNIST take hundreds of megabytes
        _frozen[key] = apply_layers(layers, stored_images(source))
    return _frozen[key]


@cache
def stored_images(source: str) -> Images:
    """Return the images of a source, which are read once."""
    from clipsilon.torch.examples.images import images

    return images(source)


def pretrained(name: str, steps: int) -> Parameters:
    """Return the parameters of a model without its head, after training on printed digits, which are public."""
    from clipsilon.torch.examples.images import Images, printed_digits
    from clipsilon.torch.examples.models import image_model
    from clipsilon.torch.examples.training import TrainingConfig, train_images

    data = stored_images("digits")
    model = image_model(name, data.shape, seed=0)
    plan = TrainingConfig("sgd", 3e-3, 200, steps, optimizer="Adam", warm_up=steps // 10)
    train_images(plan, model, Images(printed_digits(), data.test, data.classes))
    return {key: value for key, value in parameters_of(model).items() if not key.startswith("head.")}


def parameters_of(model: torch.nn.Module) -> Parameters:
    """Return the parameters of a model by name."""
    return {key: value.numpy() for key, value in model.state_dict().items()}


def load(model: torch.nn.Module, start: Parameters) -> None:
    """Set these parameters of a model and leave the others unchanged."""
    import torch

    model.load_state_dict({key: torch.from_numpy(value) for key, value in start.items()}, strict=False)


class Image(NamedTuple):
    """An image model whose trainings are stored.

    Parameters
    ----------
    scale : Scale
        Data, size and privacy.
    name : {"CNN", "ViT"}
        The architecture.
    start : dict or None
        Initial parameters; those that are left out, such as the head's, are random. None if all are.
    frozen : int, default 0
        Number of first layers that are not trained; −1 for all but the last.
    """

    scale: Scale
    name: str
    start: Parameters | None
    frozen: int = 0

    def __call__(self, lab: Lab, plan: TrainingConfig) -> float:
        """Return the test accuracy of a plan."""
        return float(lab.keep(image_accuracy, self.scale.source, self.name, plan, self.start, self.frozen))

    def accuracies(self, lab: Lab, plan: TrainingConfig) -> list[float]:
        """Return the test accuracies of a plan, one per seed of the scale."""
        return [self(lab, plan._replace(seed=seed)) for seed in range(self.scale.seeds)]

    def tuned(
        self, lab: Lab, steps: Sequence[float], algorithm: str, **update: Any
    ) -> tuple[TrainingConfig, list[float]]:
        """Return the plan with the best step, and its accuracies.

        Parameters
        ----------
        lab : Lab
            Where trainings are stored.
        steps : sequence of float
            Candidate step sizes.
        algorithm : {"sgd", "dpsgd", "dice", "correlated"}
            The update rule.
        **update
            Further fields of the plan, such as the clip and the noise.

        Returns
        -------
        TrainingConfig, list of float
            The plan with seed 0, and one accuracy per seed.
        """

        def plans(step: float, seed: int) -> TrainingConfig:
            return self.scale.plan(algorithm, step, seed, **update)

        step = best_step(lambda step, seed: self(lab, plans(step, seed)), steps, self.scale.tuning)
        return plans(step, 0), self.accuracies(lab, plans(step, 0))


def image(lab: Lab, name: str, scale: Scale) -> Image:
    """Return the CNN with random parameters, or the ViT pretrained on printed digits (in paper 3: on ImageNet).

    Parameters
    ----------
    lab : Lab
        Where the pretraining is stored.
    name : {"CNN", "ViT"}
        The architecture.
    scale : Scale
        Data, size and privacy.

    Returns
    -------
    Image
        The model. On data other than digits, the ViT, too, has random parameters.
    """
    is_pretrained = name == "ViT" and scale.source == "digits"
    return Image(scale, name, lab.keep(pretrained, name, 40 if lab.quick else 400) if is_pretrained else None)


def format_spread(values: Sequence[float]) -> str:
    """Return the mean, the minimum and the maximum as text."""
    return f"{np.mean(values):.1f} ({min(values):.1f}–{max(values):.1f})"
