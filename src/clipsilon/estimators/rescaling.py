"""The length of a classifier's slopes and its intercept, set by the last steps of its run.

A small clip finds the direction of the slopes w with little noise, and makes θ too long: clipped descent minimises the
clipped loss (paper 5, Lemma 5.1), whose minimiser lies farther out, so that probabilities come out too sure; and its
intercept is too large beside the slopes, where classes are unequal. Therefore the last tenth of the steps looks for two
numbers only, the a and b for which a·⟨x, w⟩/‖w‖ + b is the best margin, with a clip that few gradients reach. Since
clipping makes intercepts too large beside the slopes, b/a may only become smaller: else θ keeps its direction, and with
it the predicted classes. The order of the margins stays in any case. Without an intercept a alone is looked for.

These are steps of the same mechanism: w is computed from what the steps before have released, so that a record's part
in a sum is a function of the record and of released numbers, cut to the clip, as it is before. Batches and noise
multiplier are those of the other steps, so that the whole run is accounted for as one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipsilon.rules.clipping import Norm
from clipsilon.rules.noise import Gaussian
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant

Array = NDArray[np.float64]

FEWEST = 100  # steps, of which the last ten can tell a length
ENOUGH = 500.0  # n·μ from which on noise leaves the length to be told
_ONE_IN = 10  # steps
_CLIP = 1.0  # few records have a longer slope·⟨x, θ⟩/‖θ‖, for columns of unit order
_CLIP_OF_TWO = 1.5  # the same of slope·(⟨x, w⟩/‖w‖, 1)
_STEP = 8.0
_STEP_OF_TWO = 4.0
_BEGINNING = 0.4  # of the numbers that clipped descent found, which are too large by about a factor of two
_EFFECTIVE = 700.0  # n·μ of a step of 1 for two numbers: a longer one would follow the noise
_AT_ONCE = 4096  # rows
_LEAST = 1e-3  # of the length that was found before: noise must not turn θ around


def note(steps: int, intercept: bool) -> str:
    """The sentence about the last steps for a statement."""
    what = "the intercept and the length of the slopes" if intercept else "the length of θ"
    return f"The last {steps} steps set {what} alone: a clip of their own, and the noise multiplier of the others."


def split(rule: Rule, steps: int, effective: float, intercept: bool) -> tuple[Rule, int, Rule, int]:
    """The rule for most of the steps, which goes as far as before, and the one for the last; `effective` is n·μ."""
    last = steps // _ONE_IN
    first = steps - last
    longer = rule.step._replace(gamma=rule.step.gamma * steps / first)
    clip, step = (_CLIP_OF_TWO, min(_STEP_OF_TWO, effective / _EFFECTIVE)) if intercept else (_CLIP, _STEP)
    noise = Gaussian(rule.noise.std * clip / rule.clip.threshold)
    return replace(rule, step=longer), first, replace(rule, clip=Norm(clip), step=Constant(step), noise=noise), last


def slopes(theta: Array, intercept: bool) -> Array:
    """All of θ but the intercept, if there is one."""
    return theta[: theta.size - intercept]


def numbers(theta: Array, intercept: bool) -> Array:
    """The length of the slopes, and the intercept if there is one."""
    return np.append(np.linalg.norm(slopes(theta, intercept)), theta[theta.size - intercept :])


def directions(theta: Array, intercept: bool) -> Array:
    """What `numbers` are multiples of, a column each: the unit vector of the slopes, and that of the intercept."""
    found = np.zeros((theta.size, 1 + intercept))
    found[-1, -1] = 1.0  # without an intercept, the next line has the last word
    found[: theta.size - intercept, 0] = slopes(theta, intercept) / numbers(theta, intercept)[0]
    return found


def margins(features: Any, directions: Array) -> Array:
    """⟨x, direction⟩ of each row, in float64 without a copy of the table; finite, however long a row is."""
    rows = [slice(first, first + _AT_ONCE) for first in range(0, features.shape[0], _AT_ONCE)]
    with np.errstate(over="ignore", invalid="ignore"):
        found = [np.asarray(features[some].astype(np.float64) @ directions) for some in rows]
    return np.asarray(np.nan_to_num(np.concatenate(found)))  # the clip cuts what is too large in any case


def beginning(theta: Array, before: Array, intercept: bool) -> Array:
    """Where the last steps start: two numbers from those of θ, one from that before this run."""
    return _BEGINNING * numbers(theta, intercept) if intercept else before


def leaning(theta: Array, found: Array) -> Array:
    """The two numbers found, or the nearest ones whose intercept is no larger beside the slopes than in θ."""
    edge = numbers(theta, intercept=True)
    if abs(found[1]) * edge[0] <= abs(edge[1]) * found[0]:
        return found
    edge[1] = np.copysign(edge[1], found[1])
    return edge * max(float(edge @ found / (edge @ edge)), _LEAST)


def stretched(theta: Array, found: Array) -> Array:
    """The vector θ with other `numbers`: a length, and an intercept if there is a second one."""
    intercept = found.size > 1
    least = _LEAST * numbers(theta, intercept)[0]
    return np.asarray(directions(theta, intercept) @ np.append(max(float(found[0]), least), found[1:]))


def another_seed(seed: int | None, number: int) -> int | None:
    """A seed for a later part of a fit: the same noise twice would not average out."""
    return None if seed is None else int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
