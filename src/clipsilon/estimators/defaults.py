"""Default clip, batch, steps and step size, computed from n, d, ε and δ alone, which are public.

The rule assumes columns of unit order, so that rows have a norm of about √d. docs/defaults.md gives the reasons and the
evidence.

- **Clip**: a small multiple of √d. The effect of noise on θ depends on the clip only through the travel below, so a
  small clip costs nothing, and it bounds the influence of outliers. With weights, the clip is as large as the gradients
  are, because weights have no effect where all gradients are clipped to one norm. The same holds with a response: there
  the goal is a point, the stable one, and nothing corrects the length of θ afterwards. Losses of skewed residuals state
  up to which size clipping their slopes would move the estimate.
- **Travel** L = clip·(sum of the step sizes): the largest distance that θ can cover. Noise moves each entry of θ by
  about L/(n·μ), where μ is the Gaussian privacy of (ε, δ), and a margin by √d·L/(n·μ). L keeps this at a fixed size, up
  to a limit beyond which noise is no longer what limits accuracy.
- **Steps** are free: more steps with more noise each leave L/(n·μ) unchanged. There are enough of them for the steps to
  be short. **Batches** are as large as the amount of work allows.
- **Output**: an average that gives little weight to early iterates.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import NamedTuple

from clipsilon._core import checks
from clipsilon.privacy.accounting.gaussian import largest_mu
from clipsilon.rules.outputs import Average, Output
from clipsilon.rules.schedules import Constant, Schedule


class Settings(NamedTuple):
    """The settings of a private descent, apart from its noise.

    Parameters
    ----------
    clip : float
        Largest norm of the gradient of one record.
    batch : int or None
        Expected batch size; None for all records at every step.
    steps : int
        Number of iterations.
    step : Schedule
        Step sizes, a part of `clipsilon.schedules`.
    output : Output
        Which iterate is released, a part of `clipsilon.outputs`.
    reach : float
        A few times the length of the first gradients: what each record may contribute in total if it tracks them.
    stable_step : float
        A step at which descent along unclipped gradients is stable.
    """

    clip: float
    batch: int | None
    steps: int
    step: Schedule
    output: Output
    reach: float
    stable_step: float


class _Scale(NamedTuple):
    """The constants that depend on the kind of labels."""

    clip: float  # in units of √d
    reacting_clip: float  # the same where records react to the model
    noise: float  # approximate effect of noise on a margin
    enough: float  # n·μ from which on noise no longer limits accuracy
    curvature: float  # largest second derivative of the loss of a margin


# A classifier's margin may be wrong by a factor, a regression's may not; but a regression has a shorter way to go, to
# targets of unit order. Its clip is of the size of the residuals: a smaller one would find medians.
_CLASSES = _Scale(0.05, 1.0, 2.5, 10_000.0, 0.25)
_NUMBERS = _Scale(0.5, 0.5, 0.5, 1_000.0, 1.0)
_SCALES = {  # by `label_kind` of the loss
    "binary": _CLASSES,
    "class": _CLASSES,
    "nonnegative": _NUMBERS,
    "real": _NUMBERS,
    "none": _NUMBERS,
}

_WEIGHTED_CLIP = 0.5  # times the largest weight: if all gradients were clipped to one norm, weights would do nothing
_REACH = 2.0  # in units of √d: a few times the length of the first gradients
_LEAST_NOISE = 1.0  # effect on a margin where there is less than one effective record per column
_STEPS = 1000
_EPOCHS = 40  # for data too large to use all records at every step
_FEW = 1000  # records, which cost little time
_WORK = 1e9  # records × columns × steps


def defaults(
    records: int,
    columns: int,
    epsilon: float,
    delta: float,
    labels: str = "binary",
    weight: float | None = None,
    reacts: bool = False,
    slope: float = 0.0,
) -> Settings:
    """Return the default settings for data of this size and this budget.

    Parameters
    ----------
    records, columns : int
        Size of the data, at least 1 each, with the column of ones for the intercept. Columns are of unit order.
    epsilon, delta : float
        The privacy budget.
    labels : str, default "binary"
        Which labels the loss takes (`problems.losses.base.label_kind`): "binary" or "class" for losses of the margin
        of a class, whose slopes are bounded; "real" and "nonnegative" for targets of unit order; "none" is treated as
        "real".
    weight : float, optional
        The largest weight of a record; None if records have no weights.
    reacts : bool, default False
        Whether records react to the model.
    slope : float, default 0.0
        Up to which size slopes should stay unclipped (`problems.losses.base.unclipped_slope`).

    Returns
    -------
    Settings
        Clip, batch, steps, step sizes and output.
    """
    records, columns = checks.count("records", records), checks.count("columns", columns)
    scale = checks.choice("labels", labels, _SCALES)
    mu = largest_mu(checks.positive("epsilon", epsilon), checks.open_fraction("delta", delta))
    size = 1.0 if weight is None else weight
    clip = max(_clip(scale, weight, reacts), slope * size) * sqrt(columns)
    effective = records * mu
    noise = min(scale.noise, max(_LEAST_NOISE, effective / columns))
    travel = noise * min(effective, scale.enough) / sqrt(columns)
    step = Constant(travel / (clip * _STEPS))
    reach, stable_step = max(_REACH, slope) * size * sqrt(columns), 1.0 / (scale.curvature * size * columns)
    return Settings(clip, _batch(records, columns), _STEPS, step, Average(3.0), reach, stable_step)


def _clip(scale: _Scale, weight: float | None, reacts: bool) -> float:
    """Return the clip in units of √d."""
    if reacts:
        return scale.reacting_clip * (1.0 if weight is None else weight)
    return scale.clip if weight is None else _WEIGHTED_CLIP * weight


def _batch(records: int, columns: int) -> int | None:
    """Return the batch size, or None for all records."""
    wanted = max(_FEW, ceil(records * _EPOCHS / _STEPS))
    affordable = max(1, int(_WORK / (columns * _STEPS)))
    batch = min(wanted, affordable)
    return batch if batch < records else None
