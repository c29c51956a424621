"""Noise that later steps take back in part, on the grid of a training's sums.

The noise and its memory are those of `clipsilon.noise.Correlated` in the compiled engine: whole numbers, and buffers in
fixed point. The proof is in docs/proofs.md, "Exact sums and noise in PyTorch".
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clipsilon.engine import grid as engine_grid
from clipsilon.rules.correlation import rounding, shift_norm
from clipsilon.rules.noise import Correlated, initial_state
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import participations, separation
from clipsilon.torch import kernels
from clipsilon.torch.exact_sums import ExactNoise, Grid, flat, plan_grid
from clipsilon.torch.generators import RandomStream
from clipsilon.torch.rules import clip_bound, correlated_noise_of

_MOST_GROWTH = 1.0  # of the noise, to make up for rounding


def plan_correlated(rule: Rule, is_ghost: bool, parameters: int, records: int, steps: int) -> Grid:
    """Return the grid of a training with correlated noise, which makes up for the rounding of its memory.

    Parameters
    ----------
    rule : Rule
        The rule.
    is_ghost : bool
        Whether sums are those of ghost mode.
    parameters, records, steps : int
        Numbers of entries that are trained, of records, and of all planned steps.

    Returns
    -------
    Grid
        With noise that is larger than the rule's by a factor of 1 + 2η, of at most 2.

    Raises
    ------
    ValueError
        If more would be needed.
    """
    grid, buffers = plan_grid(rule, is_ghost), correlated_noise_of(rule).buffers
    times, apart = participations(rule.sampling, records, steps), separation(rule.sampling, records)
    assert times is not None  # in cyclic order
    assert apart is not None
    shift = shift_norm(buffers, steps, times, apart) * clip_bound(rule)
    growth = 2.0 * rounding(buffers, steps) * math.sqrt(steps * parameters) * grid.unit / shift if grid.std else 0.0
    if growth > _MOST_GROWTH:
        raise ValueError(
            f"noise_multiplier must be smaller for {parameters} parameters over {steps} steps of correlated noise, "
            f"whose rounding would add up to more than it can make up for, got noise of {grid.std!r} on sums."
        )
    return grid.scaled(1.0 + growth)


def make_noise(rule: Rule, is_ghost: bool, length: tuple[int, int, int | None], stream: RandomStream) -> ExactNoise:
    """Return the noise of a training.

    Parameters
    ----------
    rule : Rule
        The rule.
    is_ghost : bool
        Whether sums are those of ghost mode.
    length : tuple of int
        Numbers of entries that are trained, of records, and of all planned steps; the last for correlated noise only.
    stream : RandomStream
        The stream of the noise.

    Returns
    -------
    ExactNoise
        `CorrelatedNoise` if the rule's noise is correlated.
    """
    parameters, records, steps = length
    if steps is None or not isinstance(rule.noise, Correlated):
        return ExactNoise(plan_grid(rule, is_ghost), stream)
    return CorrelatedNoise(plan_correlated(rule, is_ghost, parameters, records, steps), stream, rule.noise)


class CorrelatedNoise(ExactNoise):
    """The grid of a training, the stream of its noise, and the memory of the noise for each parameter.

    Parameters
    ----------
    grid : Grid
        The grid, from `plan_correlated`.
    stream : RandomStream
        The stream.
    part : Correlated
        The rule's noise, whose buffers are used; the grid has its size.
    """

    def __init__(self, grid: Grid, stream: RandomStream, part: Correlated):
        super().__init__(grid, stream)
        self.part = part
        self._memory: dict[int, NDArray[np.float64]] = {}  # by the number of the parameter

    def release(self, whole: Tensor, divisor: float, like: Tensor, number: int = 0) -> Tensor:
        """Return the whole numbers with noise, in units of the gradients and divided by a number.

        Parameters
        ----------
        whole : Tensor
            Whole numbers in units of the grid, float64 on the CPU.
        divisor : float
            What sums are divided by.
        like : Tensor
            A tensor of the wanted shape and type.
        number : int, default 0
            The number of the parameter.

        Returns
        -------
        Tensor
            On the CPU.
        """
        if not self.grid.std:
            return super().release(whole, divisor, like)
        if number not in self._memory:
            self._memory[number] = initial_state(self.part, whole.numel())
        values = flat(whole).copy()
        kernels.add_correlated(
            self.part, _whole_units(self.grid.shift), values, self._memory[number], self.stream.generator
        )
        return torch.from_numpy(values * (self.grid.unit / divisor)).reshape(like.shape).to(like.dtype)

    def get_memory(self) -> dict[int, Tensor]:
        """Return a copy of the memory of each parameter."""
        return {number: torch.from_numpy(memory.copy()) for number, memory in self._memory.items()}

    def set_memory(self, memory: dict[int, Tensor]) -> None:
        """Continue with a memory that `get_memory` has returned."""
        self._memory = {number: saved.numpy().copy() for number, saved in memory.items()}


def _whole_units(shift: int) -> engine_grid.Grid:
    """Return the engine's grid of whole numbers, for sums that are kept in units, with noise ⌊2^(32−shift)·N⌋."""
    return engine_grid.Grid(1.0, engine_grid.ROUND, np.inf, np.inf, 1.0, shift, np.inf, 0.0, None)
