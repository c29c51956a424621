"""The figures of `clipsilon audit` and `clipsilon bias`, which need more than a `Chart` offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from clipsilon.analysis.bias import BiasRow
from clipsilon.privacy.auditing.audit import Audit


def tradeoff_figure(audit: Audit) -> Figure:
    """Draw the trade-off between the errors of an attack, and the certified limit, below which no attack can be."""
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


def bias_figure(rows: Sequence[BiasRow], title: str) -> Figure:
    """Draw the clipping bias against the clip, one line per β; with several β, also against β, one line per clip."""
    several = len({row.beta for row in rows}) > 1
    figure = Figure(figsize=(6.0 * (1 + several), 3.9), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, 1 + several, sharey=True))
    _draw_biases(panels[0], rows, across="clip", line="beta", name="β")
    panels[0].set(xscale="log", xlabel="clip c", ylabel="clipping bias ‖θ$_∞$ − θ$_{PS}$‖²")
    _label_values(panels[0], sorted({row.clip for row in rows}))
    if several:
        _draw_biases(panels[1], _select_clips(rows), across="beta", line="clip", name="c")
        _scale_betas(panels[1], sorted({row.beta for row in rows}))
    figure.suptitle(f"{title}: what clipping alone costs", parse_math=False)
    return figure


def _draw_biases(axes: Axes, rows: Sequence[BiasRow], across: str, line: str, name: str) -> None:
    """Draw one line per value of the field `line`; hollow points have remarks, and triangles mark zeros."""
    values = sorted({getattr(row, line) for row in rows})
    for value, colour in zip(values, colormaps["viridis"](np.linspace(0, 0.85, len(values))), strict=True):
        own = sorted((row for row in rows if getattr(row, line) == value), key=lambda row: getattr(row, across))
        x = np.array([getattr(row, across) for row in own])
        bias, steady = np.array([row.bias for row in own]), np.array([row.steady for row in own])
        drawn, zero = bias > _rounding_error(rows), steady & (bias <= _rounding_error(rows))
        style: dict[str, Any] = {"color": colour, "markersize": 5}
        if drawn.any():
            y = np.where(drawn, bias, np.nan)
            axes.plot(x, y, marker="o", linewidth=1.8, label=f"{name} = {value:.3g}", **style)
            axes.plot(x[~steady], y[~steady], "o", markerfacecolor="white", **style)
        if zero.any():  # a logarithmic axis cannot show zero, so it is marked at the lower end
            end: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 3}
            axes.plot(x[zero], np.zeros(zero.sum()), "v", **end, **style)
    _explain_marks(axes, rows)
    axes.set(yscale="log")
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.02))


def _explain_marks(axes: Axes, rows: Sequence[BiasRow]) -> None:
    """Add legend entries for the marks that occur."""
    if any(row.steady and row.bias <= _rounding_error(rows) for row in rows):
        axes.plot([], [], "v", color="black", markersize=5, label="no bias")
    if any(not row.steady and row.bias > _rounding_error(rows) for row in rows):
        axes.plot([], [], "o", color="black", markersize=5, markerfacecolor="white", label="see remark")


def _rounding_error(rows: Sequence[BiasRow]) -> float:
    """Return the size below which a bias counts as rounding error, relative to the largest bias."""
    return 1e-12 * max((row.bias for row in rows if row.converged), default=1.0)


def _select_clips(rows: Sequence[BiasRow], lines: int = 5) -> list[BiasRow]:
    """Return the rows of at most `lines` clips, spread over those with a bias."""
    clips = sorted({row.clip for row in rows if row.bias > _rounding_error(rows)} or {row.clip for row in rows})
    kept = {clips[k] for k in np.linspace(0, len(clips) - 1, min(lines, len(clips))).round().astype(int)}
    return [row for row in rows if row.clip in kept]


def _scale_betas(axes: Axes, betas: Sequence[float]) -> None:
    """Make the axis linear, or symmetric-logarithmic if β spans more than a decade."""
    positive = [beta for beta in betas if beta > 0]
    if positive and positive[-1] > 10 * positive[0]:
        axes.set_xscale("symlog", linthresh=positive[0])
    axes.set_xlabel("strength of the reaction β")
    _label_values(axes, betas)


def _label_values(axes: Axes, values: Sequence[float]) -> None:
    """Set the ticks at the values, or at some of them if there are more than ten."""
    ticks = values if len(values) <= 10 else values[:: len(values) // 6]
    axes.set_xticks(ticks, [f"{value:.3g}" for value in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
