"""Pictures, drawn with matplotlib's object interface so that nothing needs a display."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clipwise.privacy.audit import Audit

Array = NDArray[np.float64]

# A palette that colour-blind readers can tell apart (Okabe and Ito).
COLOURS = {"SGD": "#7f7f7f", "PCSGD": "#d55e00", "DPSGD": "#cc79a7", "DiceSGD": "#0072b2"}


class Curve(NamedTuple):
    """One rule's gap along the run: (K,) iterations, (replicates, K) gaps."""

    name: str
    iterations: NDArray[np.int64]
    gaps: Array


class Panel(NamedTuple):
    """Curves on one problem, with the exact clipping bias as a level to compare with."""

    title: str
    curves: Sequence[Curve]
    bias: float


def gap_figure(panels: Sequence[Panel]) -> Figure:
    """‖θ_t − θ_PS‖² against t, one panel a problem: the mean over replicates and their 10–90 % range."""
    figure = Figure(figsize=(5.2 * len(panels), 3.9), layout="constrained")
    for axes, panel in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        _draw_panel(axes, panel)
    return figure


def tradeoff_figure(audit: Audit) -> Figure:
    """An attack's trade-off between its errors beside the certified one: below the latter no attack can be."""
    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axes = figure.subplots()
    levels = np.concatenate((np.geomspace(1e-6, 1e-2, 40), np.linspace(0.01, 1, 60)))
    axes.plot(*audit.curve, color="#d55e00", label=f"attack: {audit.attack}")
    axes.plot(levels, audit.statement.tradeoff(levels), color="#0072b2", label="certified limit")
    axes.plot([0, 1], [1, 0], color="black", linestyle=":", linewidth=1, label="guessing")
    axes.set(title=audit.statement.rule, xlabel="false positive rate", ylabel="false negative rate")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        later = curve.iterations > 0
        t, gaps = curve.iterations[later], curve.gaps[:, later]
        style: dict[str, Any] = {"color": COLOURS.get(curve.name)}
        axes.fill_between(t, *np.quantile(gaps, [0.1, 0.9], axis=0), alpha=0.18, linewidth=0, **style)
        axes.plot(t, gaps.mean(axis=0), label=curve.name, linewidth=1.8, **style)
    axes.axhline(panel.bias, color="black", linestyle="--", linewidth=1, label="exact clipping bias")
    axes.set(xscale="log", yscale="log", title=panel.title, xlabel="iteration t", ylabel="‖θ$_t$ − θ$_{PS}$‖²")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
