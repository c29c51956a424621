"""Paper 3, Table 2, with MNIST in the place of CIFAR: at equal noise, and at equal certified ε.

The models are pretrained on printed digits, which are public, and their last layer is trained privately on the outputs
of the layers before it, which are computed once. MNIST is read from the user's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clipsilon.report.charts import Cell, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.paper3.networks import (
    Image,
    Parameters,
    Scale,
    certified_multiplier,
    paper_multiplier,
    parameters_of,
    privacy,
    stored_images,
)

if TYPE_CHECKING:
    from clipsilon.reproduce.paper3.networks import TrainingConfig

MODELS = ("strided CNN", "ViT")
FROZEN = -1  # all layers but the last
CLIP = 1.0
ALGORITHMS: dict[str, dict[str, Any]] = {  # all that is compared
    "DPSGD-GC": {"algorithm": "dpsgd"},
    "DiceSGD": {"algorithm": "dice"},
    "DiceSGD, cap 1.2·C": {"algorithm": "dice", "residual_cap": 1.2 * CLIP},
    "adaptive clip": {"algorithm": "dpsgd", "clipping": "adaptive", "quantile": 0.97},
    "correlated noise": {"algorithm": "correlated"},
}
STEPS = (30.0, 10.0, 3.0, 1.0)  # η·C
PRETRAINING = {False: (800, 20_000), True: (20, 1000)}  # steps and printed digits, by whether it is quick
GOAL = 96.5  # per cent
COLUMNS = ("algorithm", "model", "step", "accuracy, %", "noise", "claimed ε", "certified ε")
SIZE = {
    "C": f"{CLIP:g}",
    "δ": "10⁻⁵",
    "N": "60,000",
    "B": "4,000",
    "T": "150",
    "seeds": "5",
    "neighbours": "replace-one",
}

Accuracies = dict[str, dict[str, list[float]]]  # by model and algorithm


def mnist_scale(lab: Lab, epsilon: float) -> Scale:
    """Return the scale of the experiments on MNIST, which `--quick` makes shorter."""
    steps = 15 if lab.quick else 150  # whole passes, which correlated noise is planned for
    return Scale("mnist", 60_000, 4000, steps, epsilon, 1e-5, 1 if lab.quick else 5, warm_up=steps // 10, tuning=1)


def pretrained_on_print(name: str, steps: int, count: int) -> tuple[Parameters, float]:
    """Train a model on printed digits, without privacy, and test it on MNIST.

    Parameters
    ----------
    name : {"strided CNN", "ViT"}
        The architecture.
    steps, count : int
        Number of steps, and of printed digits.

    Returns
    -------
    dict, float
        All parameters, and the accuracy on MNIST's test images in per cent.
    """
    from clipsilon.torch.examples.images import Images
    from clipsilon.torch.examples.models import image_model
    from clipsilon.torch.examples.printed import distorted_digits
    from clipsilon.torch.examples.training import TrainingConfig, train_images

    data = stored_images("mnist")  # first, so that missing files are noticed before anything is computed
    model = image_model(name, data.shape, seed=0)
    plan = TrainingConfig("sgd", 3e-3, 200, steps, optimizer="Adam", warm_up=steps // 10)
    accuracy = train_images(plan, model, Images(distorted_digits(count), data.test, data.classes))
    return parameters_of(model), 100.0 * accuracy


@experiment(
    "mnist-noise",
    paper=3,
    where="Table 2, MNIST at equal noise",
    title="MNIST at the same noise, with and without error feedback",
    parameters=SIZE | {"ε": "2 by the paper's formula"},
    extra="torch",
)
def same_noise(lab: Lab) -> Result:
    """Test accuracy of a CNN and of a ViT that were pretrained on printed digits. All algorithms use the noise that
    paper 3 prescribes for DiceSGD with C1 = C2 = C. The same noise does not mean the same privacy: see the last column.
    """
    scale = mnist_scale(lab, 2.0)
    table, found = _compare(lab, scale, lambda update: paper_multiplier(scale))
    findings = [
        _above(f"At the same noise, DiceSGD's test accuracy is above DPSGD-GC's ({name}).", each, "DiceSGD")
        for name, each in found.items()
    ]
    return Result(findings, tables=[table])


def same_certificate(lab: Lab, epsilon: float) -> Result:
    """Return the comparison with the least noise that certifies an ε for each algorithm."""
    scale = mnist_scale(lab, epsilon)
    table, found = _compare(lab, scale, lambda update: certified_multiplier(scale, clip=CLIP, **update))
    findings = [_goal(scale, found[MODELS[0]])] if epsilon == 2.0 else []
    for name, each in found.items():
        feedback = [title for title in each if title.startswith("DiceSGD")]
        best = max(feedback, key=lambda title: float(np.mean(each[title])))
        statement = f"DiceSGD outperforms DPSGD-GC at the same certified ε = {epsilon:g} ({name})."
        findings.append(_above(statement, each, best))
    return Result(findings, tables=[table])


def _register_certified(epsilon: float) -> None:
    """Register the comparison at a certified ε."""
    title = f"MNIST at certified ε = {epsilon:g}"

    def make(lab: Lab) -> Result:
        return same_certificate(lab, epsilon)

    make.__doc__ = f"The models of `mnist-noise`, each algorithm with the least noise that certifies ε = {epsilon:g}."
    parameters = SIZE | {"certified ε": f"{epsilon:g}"}
    experiment(f"mnist-epsilon-{epsilon:g}", 3, f"Table 2, {title}", title, parameters, extra="torch")(make)


for certified in (2.0, 8.0):
    _register_certified(certified)


def _compare(lab: Lab, scale: Scale, noise: Callable[[dict[str, Any]], float]) -> tuple[Table, Accuracies]:
    """Train every model by every algorithm; `noise` returns the noise multiplier of an update."""
    rows: list[list[Cell]] = []
    found: Accuracies = {}
    steps = [step / CLIP for step in (STEPS[1:2] if lab.quick else STEPS)]
    for name in MODELS[:1] if lab.quick else MODELS:
        start, before = lab.keep(pretrained_on_print, name, *PRETRAINING[lab.quick])
        rows.append(["printed digits only", name, "–", f"{before:.2f}", "0", "0", "0"])
        model, found[name] = Image(scale, name, start, FROZEN), {}
        for title, update in ALGORITHMS.items():
            plan, found[name][title] = model.tuned(lab, steps, clip=CLIP, noise_multiplier=noise(update), **update)
            rows.append(_row(title, model, plan, found[name][title]))
    return Table("Test accuracy, mean ± standard error over seeds", COLUMNS, rows), found


def _row(title: str, model: Image, plan: TrainingConfig, accuracies: Sequence[float]) -> list[Cell]:
    noise = f"{plan.noise_multiplier:.3g}·C/B"
    return [title, model.name, f"{plan.step:g}", _with_error(accuracies), noise, *privacy(model.scale, plan)]


def _with_error(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} ± {_error(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def _error(values: Sequence[float]) -> float:
    """Return the standard error of a mean, 0 of a single value."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _above(statement: str, found: dict[str, list[float]], title: str) -> Finding:
    one, other = found[title], found["DPSGD-GC"]
    difference, error = float(np.mean(one) - np.mean(other)), float(np.hypot(_error(one), _error(other)))
    return Finding(
        statement,
        f"{title} reaches {_with_error(one)} %, DPSGD-GC {_with_error(other)} %, over {len(one)} seed(s).",
        difference > 2 * error,
        "It holds if the difference is more than two standard errors.",
    )


def _goal(scale: Scale, found: dict[str, list[float]]) -> Finding:
    best = max(found, key=lambda title: float(np.mean(found[title])))
    return Finding(
        f"The CNN reaches {GOAL} % at certified ε = {scale.epsilon:g}.",
        f"{best}, the best algorithm, reaches {_with_error(found[best])} %.",
        bool(np.mean(found[best]) >= GOAL),
    )
