"""The length of a classifier's slopes and its intercept, set by steps of their own.

A small clip finds the direction of the slopes w with little noise, and makes θ too long: clipped descent minimises the
clipped loss (paper 5, Lemma 5.1), whose minimiser lies farther out, so that probabilities are too extreme. Where
classes are unequal, it also makes the intercept too large relative to the slopes. Therefore a tenth of the steps fits
two numbers only, the a and b for which a·⟨x, w⟩/‖w‖ + b is the best margin, with a clip that few gradients reach.
Since clipping makes intercepts too large relative to the slopes, |b|/a may only decrease; otherwise θ keeps its
direction, and with it the predicted classes. The order of the margins never changes. Without an intercept, only a is
fitted.

Too long a θ has a worse direction, too, if it separates the classes well: only records near the boundary then have
slopes that are not nearly 0. Where data are plentiful, so that this bias is larger than the noise, the two numbers are
therefore fitted after half of the steps, and the steps after them train θ in a ball. A projection is computed from
released numbers, and costs no privacy.

These are steps of the same mechanism: w is computed from what earlier steps have released, so the contribution of a
record to a sum is a function of the record and of released numbers, clipped as before. Sampling and noise multiplier
are those of the other steps, so that the whole run is accounted for as one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clipsilon.problems.regions import Ball
from clipsilon.rules.clipping import Norm, bound_of
from clipsilon.rules.noise import Gaussian, std_of
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant

Array = NDArray[np.float64]

ONE_IN = 10  # steps rescale
FREE = 5  # tenths of the steps train θ before its length is found, where it is bounded afterwards
FEWEST_STEPS = 100  # so that at least ten steps rescale
LEAST_EFFECTIVE = 500.0  # n·μ from which on the length can be found despite the noise
PLENTY = 100.0  # n·μ per column from which on bias limits accuracy rather than noise
_CLIP = 1.0  # few records have a larger |slope·⟨x, θ⟩|/‖θ‖, for columns of unit order
_CLIP_OF_TWO = 1.5  # the same for the norm of slope·(⟨x, w⟩/‖w‖, 1)
_STEP = 8.0
_STEP_OF_TWO = 4.0
_INITIAL = 0.4  # of the numbers that clipped descent found, which are too large by about a factor of two
_EFFECTIVE_PER_STEP = 700.0  # n·μ for which a step size of 1 suits two numbers: a larger one would follow the noise
_ALWAYS_ALLOWED = 12.0  # a length that slopes for columns of unit order exceed only where they separate classes well
_OTHER_UNITS = 36.0  # a length that slopes exceed where columns are smaller
_LEAST = 1e-3  # of the length found before: noise must not reverse θ


def note(steps: int, has_intercept: bool) -> str:
    """Return the reason that a statement gives for the steps that rescale."""
    what = "the intercept and the length of the slopes" if has_intercept else "the length of θ"
    return f"{steps} steps set {what} alone: a clip of their own, and the noise multiplier of the others."


def rescaling_rule(rule: Rule, effective: float, has_intercept: bool) -> Rule:
    """Return the rule of the steps that rescale: that of the others, with its own clip and step size.

    Parameters
    ----------
    rule : Rule
        The calibrated rule of the other steps.
    effective : float
        n·μ, the number of records times the Gaussian privacy of the budget.
    has_intercept : bool
        Whether two numbers are fitted.

    Returns
    -------
    Rule
        A rule with the same sampling and noise multiplier.
    """
    clip, step = _CLIP, _STEP
    if has_intercept:
        clip, step = _CLIP_OF_TWO, min(_STEP_OF_TWO, effective / _EFFECTIVE_PER_STEP)
    noise = Gaussian(std_of(rule.noise) * clip / bound_of(rule.clip))
    return replace(rule, clip=Norm(clip), step=Constant(step), noise=noise)


def slopes(theta: Array, has_intercept: bool) -> Array:
    """Return θ without its intercept, if it has one."""
    return theta[: theta.size - has_intercept]


def numbers(theta: Array, has_intercept: bool) -> Array:
    """Return the length of the slopes, followed by the intercept if there is one."""
    return np.append(np.linalg.norm(slopes(theta, has_intercept)), theta[theta.size - has_intercept :])


def directions(theta: Array, has_intercept: bool) -> Array:
    """Return the unit vectors, one per column, whose multiples by `numbers` add up to θ."""
    found = np.zeros((theta.size, 1 + has_intercept))
    found[-1, -1] = 1.0  # overwritten below when there is no intercept
    found[: theta.size - has_intercept, 0] = slopes(theta, has_intercept) / numbers(theta, has_intercept)[0]
    return found


def initial_numbers(theta: Array, before: Array, has_intercept: bool) -> Array:
    """Return the numbers to start from.

    Parameters
    ----------
    theta : array
        θ as the other steps found it.
    before : array
        The `numbers` of θ before this fit.
    has_intercept : bool
        Whether two numbers are fitted: they start at a fraction of those of θ. One starts where it was before.

    Returns
    -------
    array
        One or two numbers.
    """
    return _INITIAL * numbers(theta, has_intercept) if has_intercept else before


def ball(theta: Array, has_intercept: bool) -> Ball:
    """Return the ball in which all of θ is trained from then on; it leaves the intercept room.

    Slopes up to a length of `_ALWAYS_ALLOWED` fit in. So do those longer than `_OTHER_UNITS`, which show that columns
    are smaller than the defaults assume. Between the two the size grows smoothly.
    """
    length = float(numbers(theta, has_intercept)[0])
    intercept = theta[-1] if has_intercept else 0.0
    return Ball(float(np.hypot(max(_ALWAYS_ALLOWED, length**2 / _OTHER_UNITS), intercept)))


def cap_intercept(theta: Array, found: Array) -> Array:
    """Return the closest two numbers whose intercept is no larger relative to the slopes than that of θ."""
    edge = numbers(theta, has_intercept=True)
    if abs(found[1]) * edge[0] <= abs(edge[1]) * found[0]:
        return found
    edge[1] = np.copysign(edge[1], found[1])
    return edge * max(float(edge @ found / (edge @ edge)), _LEAST)


def rescale(theta: Array, found: Array) -> Array:
    """Return θ with other `numbers`: a length, and an intercept if there is a second one."""
    has_intercept = found.size > 1
    least = _LEAST * numbers(theta, has_intercept)[0]
    return np.asarray(directions(theta, has_intercept) @ np.append(max(float(found[0]), least), found[1:]))
