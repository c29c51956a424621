"""Clipped gradients as whole numbers on a public grid, their sums, and exact noise.

Sums of whole numbers below 2^53 are exact in float64, in any order. So a sum does not depend on the order of the
records, on the pieces of a batch or on the number of processes, and a record changes it by its own whole numbers alone,
whose norm is at most the clip. The proof is in docs/proofs.md, "Exact sums and noise in PyTorch".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from clipsilon.rules.clipping import bound_of
from clipsilon.rules.feedback import ErrorFeedback
from clipsilon.rules.rule import Rule
from clipsilon.torch import kernels
from clipsilon.torch.generators import RandomStream
from clipsilon.torch.rules import clip_bound, is_uncapped, noise_on_sum, sampling_of, scale_noise

MOST_PARAMETERS = 2**32
EXTRA_NOISE = 2.0**-10
"""By how much the noise of error feedback with a cap is enlarged, relatively, to cover the rounding of the error."""

GHOST_NOISE = 2.0**-14
"""By how much the noise of ghost mode is enlarged, relatively, to cover the rounding of sums, if there is no cap."""

REACH = 2.0**9
"""How long the absolute values of a clipped record's terms may be in ghost mode, in units of the clip."""

SUM_TERMS = 2**12
"""The most numbers that ghost mode adds up, one after the other, for an entry of a sum."""

_UNIT_BITS = 32  # the noise is ⌊2^32·N⌋
_SUM_BITS = 50  # sums of one batch are below 2^50, so that those of a step are below 2^53
_MOST_EXTRA, _MOST_SHIFT = 40, 60
_LARGEST_ERROR = 2.0**52, 2.0**500  # entries of the error, in units of the grid, with and without a cap


class Grid(NamedTuple):
    """The grids of a step: that of the sums, and that of the release, which is the same or coarser.

    All steps have the same grids, unless the clip adapts: they are then in proportion to its threshold.

    Parameters
    ----------
    unit : float
        Spacing of the grid on which gradients are summed.
    std : float
        Standard deviation of the noise on the sum of a batch; 0 without noise.
    shift : int
        Bits by which the noise ⌊2^32·N⌋ is rounded down. The grid of the release is std·2^(shift − 32).
    extra : int
        Bits by which sums are rounded before noise is added. Only error feedback with a cap has any.
    rows : int
        The most rows of a batch for which sums are exact.
    """

    unit: float
    std: float
    shift: int
    extra: int
    rows: int

    def scaled(self, factor: float) -> Grid:
        """Return the grids for a clip, and noise, that are larger by a factor."""
        return self._replace(unit=self.unit * factor, std=self.std * factor)


def plan_grid(rule: Rule, is_ghost: bool = False) -> Grid:
    """Return the grids of a training, or of its first step, which depend on its public settings alone."""
    batch = sampling_of(rule).batch
    rows = 128 + 8 * batch  # a Poisson batch of more has a probability below 1e-40
    largest = _largest_sum(rule, rows)
    std = _noise_on_sum(rule, is_ghost)
    if not 2.0**-300 <= largest <= 2.0**300 or (std and not 2.0**-60 <= std / largest <= 2.0**60):
        raise ValueError(
            f"clip must be a number of ordinary size, and noise_multiplier be 0 or of ordinary size, got a clip of "
            f"{clip_bound(rule)!r} and noise of {std / batch!r}."
        )
    if not std:
        return Grid(math.ldexp(1.0, math.frexp(largest)[1] - _SUM_BITS), 0.0, 0, 0, rows)
    exponent = max(math.frexp(largest / std)[1] - _SUM_BITS, -_UNIT_BITS - (_MOST_EXTRA if is_capped(rule) else 0))
    shift, extra = max(exponent + _UNIT_BITS, 0), max(-_UNIT_BITS - exponent, 0)
    return Grid(math.ldexp(std, exponent), std, shift, extra, rows)


def is_capped(rule: Rule) -> bool:
    """Return whether the certificate counts what records leave in the error, so that its rounding matters."""
    return isinstance(rule.feedback, ErrorFeedback) and not is_uncapped(rule)


def _largest_sum(rule: Rule, rows: int) -> float:
    """Return a bound on the norm of what is added up in a step: gradients, what is kept of them, and the error."""
    found = rows * clip_bound(rule)
    if isinstance(rule.feedback, ErrorFeedback):
        found = max(found, sampling_of(rule).batch * bound_of(rule.feedback.clip))
    if isinstance(rule.feedback, ErrorFeedback) and is_capped(rule):
        found = max(found, rows * bound_of(rule.feedback.cap))
    return found


def _noise_on_sum(rule: Rule, is_ghost: bool) -> float:
    std = noise_on_sum(rule) * (1 + _extra_noise(rule, is_ghost))
    return std * (1 + 2.0**-50)  # not less than the rule states, whatever was rounded


def _extra_noise(rule: Rule, is_ghost: bool) -> float:
    return EXTRA_NOISE if is_capped(rule) else GHOST_NOISE * is_ghost


def charged_rule(rule: Rule, parameters: int, steps: int, is_ghost: bool = False) -> Rule:
    """Return the rule to account for, whose noise is lower if that which runs does not cover all rounding.

    Parameters
    ----------
    rule : Rule
        The rule that runs.
    parameters, steps : int
        Number of parameters that are trained, and length of the run.
    is_ghost : bool, default False
        Whether sums are those of ghost mode.

    Returns
    -------
    Rule
        The rule itself, unless it has error feedback with a cap and very many parameters and steps, or ghost mode has
        very large batches.

    Notes
    -----
    Rounding adds at most `charge` to the sensitivity of a run, which is at least C1 if the record takes part. With an
    adaptive clip both are in proportion to the threshold.
    """
    if not (is_capped(rule) or is_ghost) or not noise_on_sum(rule):
        return rule
    part = (1 + _extra_noise(rule, is_ghost)) / (1 + charge(rule, parameters, steps, is_ghost) / clip_bound(rule))
    return rule if part >= 1 else scale_noise(rule, part)


def charge(rule: Rule, parameters: int, steps: int, is_ghost: bool = False) -> float:
    """Return what rounding adds to the sensitivity of a sum or, with error feedback and a cap, of those of all steps.

    Parameters
    ----------
    rule : Rule
        The rule.
    parameters, steps : int
        Number of parameters that are trained, and length of the run.
    is_ghost : bool, default False
        Whether sums are those of ghost mode; otherwise, only a cap adds anything.
    """
    found = _charge_of_sum(rule, parameters) if is_ghost else 0.0
    if not is_capped(rule):
        return found
    return 3 * steps * found + _charge_of_error(rule, parameters, steps, is_ghost)


def _charge_of_sum(rule: Rule, parameters: int) -> float:
    """Return what rounding adds to the sensitivity of a sum of ghost mode, or of what is kept of gradients."""
    grid, most = plan_grid(rule, is_ghost=True), clip_bound(rule)
    if isinstance(rule.feedback, ErrorFeedback) and is_capped(rule):
        most = max(most, bound_of(rule.feedback.cap))
    return 2 * SUM_TERMS * 2.0**-52 * grid.rows * REACH * most + 2 * math.sqrt(parameters) * grid.unit


def _charge_of_error(rule: Rule, parameters: int, steps: int, is_ghost: bool) -> float:
    feedback, grid, root = rule.feedback, plan_grid(rule, is_ghost), math.sqrt(parameters)
    assert isinstance(feedback, ErrorFeedback)
    norms = bound_of(feedback.cap) + sampling_of(rule).batch * bound_of(feedback.clip)
    coarse = math.ldexp(grid.unit, grid.extra) if grid.extra else 0.0
    return steps * (6 * root * grid.unit + 2.0**-41 * norms) + math.sqrt(steps) * root * coarse


class ExactNoise:
    """The grid of a step and the stream of a training's noise.

    Parameters
    ----------
    grid : Grid
        The grid of the first step.
    stream : RandomStream
        The stream.
    """

    def __init__(self, grid: Grid, stream: RandomStream):
        self._first, self.grid, self.stream = grid, grid, stream

    def follow_clip(self, factor: float) -> None:
        """Let the grid and the noise of the next steps follow a clip, given by its size in units of the first one."""
        self.grid = self._first.scaled(factor)

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
            The number of the parameter, by which noise with a memory knows it.

        Returns
        -------
        Tensor
            On the CPU.
        """
        grid, dtype = self.grid, like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
        if not grid.std:
            return (whole * (grid.unit / divisor)).to(like.dtype)
        found = torch.empty(whole.shape, dtype=dtype)
        spacing = math.ldexp(grid.unit, grid.extra) / divisor
        bits = self.stream.generator.bit_generator
        kernels.release(bits, flat(whole), (grid.extra, grid.shift), spacing, flat(found))
        return found.to(like.dtype)

    def get_memory(self) -> dict[int, Tensor]:
        """Return what the noise carries from step to step, for each parameter: nothing, unless it is correlated."""
        return {}

    def set_memory(self, memory: dict[int, Tensor]) -> None:
        """Continue with a memory that `get_memory` has returned."""


def measure(samples: Sequence[Tensor]) -> Tensor:
    """Return the norm of each record's vector, which is spread over several tensors, in float64.

    Parameters
    ----------
    samples : sequence of Tensor
        One row per record.

    Returns
    -------
    Tensor
        One norm per record, with a relative error below 2^−46 unless its square under- or overflows.
    """
    squares = np.zeros((len(samples[0]), 2))
    for sample in samples:
        kernels.add_squares(_rows(sample), squares)
    return torch.from_numpy(np.sqrt(squares[:, 0] + squares[:, 1]))


def add_whole(sample: Tensor, factors: Tensor, total: Tensor) -> None:
    """Add the rows of a tensor, times factors and truncated to whole numbers, to whole numbers on the CPU.

    Parameters
    ----------
    sample : Tensor
        One row per record.
    factors : Tensor
        One factor per record, float64 on the CPU.
    total : Tensor
        Whole numbers, float64, modified in place.
    """
    kernels.add_whole(_rows(sample), factors.numpy(), flat(total))


def to_whole(total: Tensor, unit: float) -> Tensor:
    """Return a tensor in whole units, rounded to the nearest, as float64 on the CPU."""
    return (total.detach().to("cpu", torch.float64) / unit).round_()


def limit_error(error: Tensor, capped: bool) -> None:
    """Cut the entries of an error off where whole numbers would cease to be exact, in place; undefined ones are 0."""
    most = _LARGEST_ERROR[0 if capped else 1]
    error.nan_to_num_(nan=0.0, posinf=most, neginf=-most).clamp_(-most, most)


def _rows(sample: Tensor) -> np.ndarray:
    """Return a tensor as a matrix with one row per record, of float32 or float64, on the CPU."""
    wide = torch.promote_types(sample.dtype, torch.float32)
    rows = sample.detach().to("cpu", wide).reshape(len(sample), math.prod(sample.shape[1:]))
    return np.ascontiguousarray(rows.numpy())


def flat(total: Tensor) -> np.ndarray:
    """Return the memory of a contiguous tensor as a vector."""
    return np.asarray(total.view(-1).numpy())
