"""The length of a classifier's θ, set by the last steps of its run.

A small clip finds the direction of θ with little noise, and makes θ too long: clipped descent minimises the clipped
loss (paper 5, Lemma 5.1), whose minimiser lies farther out, so that probabilities come out too sure. Therefore the last
tenth of the steps looks for one number only, the a for which a·⟨x, θ⟩/‖θ‖ is the best margin, with a clip that few
slopes reach. A factor changes neither the order of the margins nor the predicted classes.

These are steps of the same mechanism, with the same batches and the same noise multiplier, so that the whole run is
accounted for as one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipwise.clipping import Norm
from clipwise.noise import Gaussian
from clipwise.rule import Rule
from clipwise.steps import Constant

Array = NDArray[np.float64]

FEWEST = 100  # steps, of which the last ten can tell a length
ENOUGH = 500.0  # n·μ from which on noise leaves the length to be told
NOTE = "The last {} steps set the length of θ alone: a clip of their own, and the noise multiplier of the others."
_ONE_IN = 10  # steps
_CLIP = 1.0  # few records have a longer slope·⟨x, θ⟩/‖θ‖, for columns of unit order
_STEP = 8.0
_AT_ONCE = 4096  # rows
_LEAST = 1e-3  # of the length that was found before: noise must not turn θ around


def split(rule: Rule, steps: int) -> tuple[Rule, int, Rule, int]:
    """The rule for most of the steps, which goes as far as before, and the one for the last of them."""
    last = steps // _ONE_IN
    first = steps - last
    longer = rule.step._replace(gamma=rule.step.gamma * steps / first)
    noise = Gaussian(rule.noise.std * _CLIP / rule.clip.threshold)
    return replace(rule, step=longer), first, replace(rule, clip=Norm(_CLIP), step=Constant(_STEP), noise=noise), last


def margins(features: Any, direction: Array) -> Array:
    """⟨x, direction⟩ of each row, in float64 without a copy of the table; finite, however long a row is."""
    rows = [slice(first, first + _AT_ONCE) for first in range(0, features.shape[0], _AT_ONCE)]
    with np.errstate(over="ignore", invalid="ignore"):
        found = [np.asarray(features[some].astype(np.float64) @ direction) for some in rows]
    return np.asarray(np.nan_to_num(np.concatenate(found)))  # the clip cuts what is too large in any case


def unit_vector(theta: Array) -> Array:
    """The unit vector of θ."""
    return theta / np.linalg.norm(theta)


def stretched(theta: Array, length: Any) -> Array:
    """The vector θ at another length."""
    return unit_vector(theta) * max(float(length), _LEAST * float(np.linalg.norm(theta)))


def another_seed(seed: int | None, number: int) -> int | None:
    """A seed for a later part of a fit: the same noise twice would not average out."""
    return None if seed is None else int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
