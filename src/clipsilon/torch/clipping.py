"""Clips of a record's gradient: which parameters are clipped together, and by which factors.

A group of parameters is clipped by its joint norm, to C/√G if there are G groups, so that the whole gradient has at
most the norm C, whatever the groups are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clipsilon.rules.clipping import Clip, Norm, Normalise, Unclipped

Group = tuple[int, ...]  # places of parameters in the list of those that are trained

SHRINK = 2.0**-44
"""By how much clips are lowered, relatively: more than what rounding adds to norms, factors and products."""


def clip_groups(clipping: str, module: nn.Module, trained: Sequence[Tensor]) -> list[Group]:
    """Return the groups of parameters that are clipped together.

    Parameters
    ----------
    clipping : str
        "per-layer" for one group per layer, of which several are one group if they share parameters; otherwise, there
        is one group.
    module : nn.Module
        The model.
    trained : sequence of Tensor
        The parameters that are trained.

    Returns
    -------
    list of tuple of int
        Disjoint groups of places in `trained`, which contain every place.
    """
    if clipping != "per-layer":
        return [tuple(range(len(trained)))]
    places = {p: place for place, p in enumerate(trained)}
    groups: list[set[int]] = []
    for layer in module.modules():
        own = {places[p] for p in layer.parameters(recurse=False) if p in places}
        apart = [group for group in groups if group.isdisjoint(own)]
        groups = [*apart, own.union(*(group for group in groups if not group.isdisjoint(own)))] if own else groups
    return [tuple(sorted(group)) for group in groups]


def clip_factors(clip: Clip, groups: Sequence[Group], norms: Sequence[Tensor]) -> list[Tensor]:
    """Return the factors by which the gradients of each parameter are multiplied.

    Parameters
    ----------
    clip : Clip
        The clip of the whole gradient.
    groups : sequence of tuple of int
        From `clip_groups`.
    norms : sequence of Tensor
        For each group, one norm per record.

    Returns
    -------
    list of Tensor
        For each parameter that is trained, one factor per record.
    """
    found: dict[int, Tensor] = {}
    for group, joint in zip(groups, norms, strict=True):
        found |= dict.fromkeys(group, clip_factor(lower(clip, len(groups) ** -0.5), joint))
    return [found[place] for place in sorted(found)]


def lower(clip: Clip, scale: float = 1.0) -> Clip:
    """Return a clip, times a scale, that is lower by what rounding may add."""
    if isinstance(clip, Norm):
        return Norm(clip.threshold * scale * (1 - SHRINK))
    return Normalise(clip.length * scale * (1 - SHRINK)) if isinstance(clip, Normalise) else clip


def clip_factor(clip: Clip, norms: Tensor) -> Tensor:
    """Return the factors by which a clip multiplies vectors of these norms; rounding never makes them too large."""
    match clip:
        case Norm():
            return clip.threshold / norms.clamp(min=clip.threshold)
        case Normalise():
            return clip.length / norms.clamp(min=_least_norm(norms.dtype))
        case Unclipped():
            return torch.ones_like(norms)
    raise TypeError(f"clip must be Norm, Normalise or Unclipped, got {clip!r}.")


def require_finite(norms: Tensor) -> Tensor:
    """Return the norms; raise RuntimeError if any is not finite, since no clip bounds such a gradient."""
    if not bool(norms.isfinite().all()):
        raise RuntimeError("A record's gradient is not finite, so no clip bounds it: nothing of it was released.")
    return norms


def _least_norm(dtype: torch.dtype) -> float:
    """Return the norm below which squares, and thus the norm, are lost to rounding.

    Dividing by a norm that was computed too small would exceed the clip, so shorter vectors are divided by this
    norm instead and stay shorter than the clip. A zero vector stays zero.
    """
    numbers = torch.finfo(dtype)
    return float(numbers.tiny**0.5 / numbers.eps)  # so that it holds where numbers below `tiny` are set to zero, too
