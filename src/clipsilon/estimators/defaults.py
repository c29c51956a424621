"""Clip, batch, steps and step size when nobody chose them: a rule of n, d, ε and δ alone, which are public.

For columns of unit order, so that rows are about √d long. docs/defaults.md has the reasons and the evidence.

- **Clip** at a small multiple of √d. What noise does to θ depends on the clip only through the travel below, so a small
  clip costs nothing, and it bounds what outliers do. With weights it is as large as the gradients are, because weights
  do not count where all gradients are cut to one length; and with a response, too, because there the goal is a point,
  the stable one, and nothing sets the length of θ afterwards.
- **Travel** L = clip·(sum of the steps): the farthest that θ can get. Noise moves every entry of θ by about L/(n·μ),
  where μ is the Gaussian privacy of (ε, δ), and so a margin by √d·L/(n·μ). L keeps that at a fixed size, up to a limit
  from which on noise is not what hurts.
- **Steps** are free: more of them with more noise each leave L/(n·μ) as it is. There are enough for the steps to be
  short. **Batches** are large, as work allows.
- **Output**: an average that forgets the way from the start.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import Any, NamedTuple

from clipsilon._core import checks
from clipsilon.privacy.accounting.gaussian import largest_mu
from clipsilon.rules.outputs import Average
from clipsilon.rules.schedules import Constant


class Settings(NamedTuple):
    """What a private descent needs to know besides its budget."""

    clip: float
    batch: int | None  # None: all records at every step
    steps: int
    step: Any  # a part of `clipsilon.schedules`
    output: Any  # a part of `clipsilon.outputs`


class _Scale(NamedTuple):
    """What differs between losses."""

    clip: float  # in units of √d
    reacting_clip: float  # the same where records react to the model
    noise: float  # what noise may do to a margin, about
    enough: float  # n·μ from which on noise is not what hurts


# A classifier's margin may be wrong by a factor, a regression's may not; but it has less far to go, to targets of unit
# order. Its clip is where residuals are: a smaller one would find medians.
_SCALES = {"logistic": _Scale(0.05, 1.0, 2.5, 10_000.0), "squared": _Scale(0.5, 0.5, 0.5, 1_000.0)}

_WEIGHTED_CLIP = 0.5  # times the largest weight: a clip that cuts all gradients to one length leaves weights no say
_LEAST_NOISE = 1.0  # where there is less than one effective record a column
_STEPS = 1000
_EPOCHS = 40  # of data too large for all records at every step
_FEW = 1000  # records that are no work
_WORK = 1e9  # records × columns × steps


def defaults(
    records: int,
    columns: int,
    epsilon: float,
    delta: float,
    loss: str = "logistic",
    weight: float | None = None,
    reacts: bool = False,
) -> Settings:
    """Settings for so many records and columns (with the intercept) of unit order, and a loss "logistic" or "squared".

    "logistic" is for losses of a label's margin, which have bounded slopes; "squared" for errors of targets that are
    of unit order, squared or Huber's. `weight` is the largest that a record can have, None where records have none;
    `reacts` says that records react to the model.
    """
    records, columns = checks.count("records", records), checks.count("columns", columns)
    scale = checks.choice("loss", loss, _SCALES)
    mu = largest_mu(checks.positive("epsilon", epsilon), checks.open_fraction("delta", delta))
    clip = _clip(scale, weight, reacts) * sqrt(columns)
    effective = records * mu
    noise = min(scale.noise, max(_LEAST_NOISE, effective / columns))
    travel = noise * min(effective, scale.enough) / sqrt(columns)
    step = Constant(travel / (clip * _STEPS))
    return Settings(clip, _batch(records, columns), _STEPS, step, Average(3.0))


def _clip(scale: _Scale, weight: float | None, reacts: bool) -> float:
    if reacts:
        return scale.reacting_clip * (1.0 if weight is None else weight)
    return scale.clip if weight is None else _WEIGHTED_CLIP * weight


def _batch(records: int, columns: int) -> int | None:
    wanted = max(_FEW, ceil(records * _EPOCHS / _STEPS))
    affordable = max(1, int(_WORK / (columns * _STEPS)))
    batch = min(wanted, affordable)
    return batch if batch < records else None
