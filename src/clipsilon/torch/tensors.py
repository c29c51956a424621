"""Tensor operations of the update: clip factors, and norms of vectors that are spread over several tensors."""

from __future__ import annotations

from collections.abc import Iterable

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


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which to sum numbers of this type: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def joint_norm(norms: Iterable[Tensor]) -> Tensor:
    """Return √Σ norm² over the parts of a vector, on the first part's device; parts may hold one norm per record."""
    parts = list(norms)
    squares = [part.to(parts[0].device, accumulation_dtype(part.dtype)).square() for part in parts]
    return torch.stack([square.to(_widest_dtype(squares)) for square in squares]).sum(0).sqrt()


def _widest_dtype(parts: list[Tensor]) -> torch.dtype:
    widest = parts[0].dtype
    for part in parts:
        widest = torch.promote_types(widest, part.dtype)
    return widest
