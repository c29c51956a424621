"""Average the reports of a step under local privacy, where each user adds noise to their own gradient.

A report is computed completely before it enters the mean, so the mean is a function of the reports, and what it reveals
of a user is at most what their report reveals. Weights are public. The reports of a step are made one after the other,
because their noise is one stream; on several cores, replicates run side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload, register_jitable
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.options import INNER
from clipsilon._core.parts import implemented
from clipsilon._core.rows import row
from clipsilon.engine.arrays import Models, RecordParts, Records, Span, Sums
from clipsilon.engine.batch import Workspace, add_batch, forget
from clipsilon.engine.grid import Grid
from clipsilon.problems.losses.base import gradient
from clipsilon.problems.responses import respond
from clipsilon.rules.noise import Noise, make_report

Array = NDArray[np.float64]


def has_reports(noise: Any) -> bool:
    """Return whether noise, given as a part or as its type while compiling, is added by the users themselves."""
    return getattr(noise, "instance_class", type(noise)) in implemented(make_report)


def add_span(
    noise: Noise,
    records: Records,
    parts: RecordParts,
    models: Models,
    span: Span,
    grid: Grid,
    into: Sums,
    memory: Array,
    space: Workspace,
    rngs: tuple[Generator, Generator],
) -> None:
    """Add the records of a span to the sums of the step, or write the mean of their reports under local privacy.

    This is a declaration for compiled code. The type of the noise selects one of the functions below.

    Parameters
    ----------
    noise : Noise
        The noise of the rule.
    records, parts, models, span, grid, into, memory, space
        As for `add_batch`. Under local privacy the span holds all records of the step.
    rngs : pair of Generator
        The streams of the response and of the noise.
    """


@overload(add_span, jit_options=INNER)
def _add_span(noise, records, parts, models, span, grid, into, memory, space, rngs):  # type: ignore[no-untyped-def]
    return _average_reports if has_reports(noise) else _sum_records


def _sum_records(noise, records, parts, models, span, grid, into, memory, space, rngs):  # type: ignore[no-untyped-def]
    add_batch(records, parts, models, span, grid, into, memory, space, rngs[0])


def _average_reports(noise, records, parts, models, span, grid, into, memory, space, rngs):  # type: ignore[no-untyped-def]
    features, labels, _, _ = records
    loss, response, _, _ = parts
    theta, deployed = models
    v, _, _, _ = into
    moved, dense_row, report, _, _, _, _, _, _, _, _, _, _ = space
    drawn, first, last = span
    response_rng, noise_rng = rngs
    total = 0.0
    for k in range(first, last):
        i = drawn[k]
        forget(response, moved)
        label = respond(response, deployed, row(features, i, dense_row), labels[i], moved, response_rng)
        forget(loss, report)
        gradient(loss, theta, moved, label, report)
        weight = make_report(noise, i, report, noise_rng)
        total += weight
        add_report(weight / total, report, v)


@register_jitable(**INNER)  # type: ignore[untyped-decorator]
def add_report(share: float, report: Array, mean: Array) -> None:
    """Add a report to the mean of those before it.

    Parameters
    ----------
    share : float
        The weight of the report, divided by the total of the weights so far: 1 for the first report.
    report : array of shape (d,)
        The report.
    mean : array of shape (d,)
        The weighted mean, updated in place; zero before the first report.
    """
    for j in range(mean.size):
        mean[j] += share * (report[j] - mean[j])
