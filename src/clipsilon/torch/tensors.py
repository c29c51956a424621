"""Tensor operations of the update: clip factors, and the refusal of norms that are not finite."""

from __future__ import annotations

import torch
from torch import Tensor

from clipsilon.rules.clipping import Clip, Norm, Normalise, Unclipped


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
