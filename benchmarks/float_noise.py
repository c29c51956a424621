"""Gaussian noise as it was before noise was exact: NumPy's, in floating point, added to sums that are not rounded."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import clipsilon as cs
from clipsilon._core.parts import implements
from clipsilon.rules.noise import add_noise, std_of


class FloatGaussian(NamedTuple):
    """N(0, std²) on every coordinate of the mean update; it certifies nothing, and only its speed is of interest."""

    std: float


@implements(add_noise, FloatGaussian)
def _(noise, t, drawn, update, state, rng):
    for j in range(update.size):
        update[j] += noise.std * rng.standard_normal()


def with_float_noise(rule: cs.Rule) -> cs.Rule:
    """Return a rule with the same amount of noise, which is drawn and added in floating point."""
    return replace(rule, noise=FloatGaussian(std_of(rule.noise)))
