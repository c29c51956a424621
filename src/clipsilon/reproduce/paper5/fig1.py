"""Paper 5, Fig. 1 and Lemma 5.1: the loss that clipped descent minimises."""

from __future__ import annotations

import numpy as np

from clipsilon.engine.sweep import Run
from clipsilon.problems.losses import Logistic, SquaredError, clipped_loss, gradient, value
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.problem import Problem
from clipsilon.report.charts import Array, Chart, Series
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.rules.clipping import Norm, Unclipped, add_clipped
from clipsilon.rules.noise import Gaussian
from clipsilon.rules.outputs import Average
from clipsilon.rules.presets import ClippedDPGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Full
from clipsilon.rules.schedules import Constant

_CASES: dict[str, tuple[Loss, float, float]] = {
    "squared error": (SquaredError(), 0.0, 1.0),
    "logistic": (Logistic(), 1.0, 0.3),
}  # loss, label, clip
_MARGINS = np.linspace(-4.0, 4.0, 801)


@experiment(
    "paper5-fig1",
    paper=5,
    where="Fig. 1, Lemma 5.1",
    title="Clipped descent minimises another loss, with linear tails",
    parameters={"x": "1", "squared error": "y = 0, B = 1", "logistic": "y = 1, B = 0.3"},
)
def clipped(lab: Lab) -> Result:
    """Clipping gradients looks like a change of the algorithm. For a convex loss of ⟨x, θ⟩ it is a change of the loss:
    where the slope is too steep, the curve continues as a straight line. Clipped descent converges to the minimum of
    this loss.
    """
    curves = {name: (_values(loss, y), _values(clipped_loss(loss, b), y)) for name, (loss, y, b) in _CASES.items()}
    bends = min(float(np.diff(after, 2).min()) for _, after in curves.values())
    exact, numeric = _gradient_errors()
    same = float(np.abs(_values(clipped_loss(Logistic(), 1.0), 1.0) - _values(Logistic(), 1.0)).max())
    apart = _runs_apart(lab)
    findings = [
        Finding(
            "The clipped loss is convex.",
            f"The smallest second difference over {_MARGINS.size} margins is {bends:.1g}.",
            bends > -1e-12,
        ),
        Finding(
            "The gradient of the clipped loss is the clipped gradient of the loss.",
            f"At 200 random models and records with five features they differ by at most {exact:.1g}, and from "
            f"numerical derivatives of the clipped loss by at most {numeric:.1g}.",
            exact < 1e-12 and numeric < 1e-6,
        ),
        Finding(
            "Clipped descent is descent on the clipped loss.",
            f"Two runs of 200 steps with the same noise, one of each kind, differ by at most {apart:.1g}.",
            apart < 1e-7,
        ),
        Finding(
            "If B is at least the Lipschitz constant, the clipped loss equals the loss.",
            f"For the logistic loss with B = L = 1 the two differ by at most {same:.1g}.",
            same < 1e-12,
        ),
    ]
    return Result(findings, [_chart(name, *curves[name]) for name in _CASES])


def _chart(name: str, before: Array, after: Array) -> Chart:
    _, _, clip = _CASES[name]
    series = [Series("the loss", _MARGINS, before, kind="dashed"), Series(f"clipped at B = {clip:g}", _MARGINS, after)]
    return Chart(name.capitalize(), "margin ⟨x, θ⟩", "loss", series)


def _values(loss: Loss, label: float) -> Array:
    one = np.ones(1)
    return np.array([value(loss, np.array([margin]), one, label) for margin in _MARGINS])


def _gradient_errors() -> tuple[float, float]:
    """Return how far the gradient of the clipped loss is from the clipped gradient, and from finite differences."""
    rng, exact, numeric = np.random.default_rng(0), 0.0, 0.0
    for loss, label, clip in _CASES.values():
        smooth = clipped_loss(loss, clip)
        for theta, x in rng.standard_normal((100, 2, 5)):
            plain, ours, wanted = np.zeros(5), np.zeros(5), np.zeros(5)
            gradient(loss, theta, x, label, plain)
            gradient(smooth, theta, x, label, ours)
            add_clipped(Norm(clip), plain, 1.0, wanted)
            shifts = 1e-6 * np.eye(5)
            found = [(value(smooth, theta + s, x, label) - value(smooth, theta - s, x, label)) / 2e-6 for s in shifts]
            exact = max(exact, float(np.abs(ours - wanted).max()))
            numeric = max(numeric, float(np.abs(ours - found).max()))
    return exact, numeric


def _runs_apart(lab: Lab) -> float:
    """Return how far two runs diverge: one clips gradients of the loss, the other descends the clipped loss."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((100, 4))
    y = (rng.random(100) < 0.5).astype(float)
    step, clip, noise = Constant(0.5), 0.3, 0.05
    rules: list[tuple[Loss, Rule]] = [
        (Logistic(), ClippedDPGD(step, clip, noise)),
        (clipped_loss(Logistic(), clip), Rule("DPGD", step, Unclipped(), Full(), Gaussian(noise), output=Average())),
    ]
    clips, descends = lab.sweep([Run(Problem(x, y, loss=loss), rule, 200) for loss, rule in rules])
    return float(np.abs(clips.theta - descends.theta).max())
