"""What the update needs of tensors: clips as factors, and lengths over many of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from clipsilon.rules.clipping import Norm, Normalise, Unclipped


def factor(clip: Any, norms: Tensor) -> Tensor:
    """What a clip multiplies vectors of these norms by, never more than makes them as long as the clip allows."""
    match clip:
        case Norm():
            return clip.threshold / norms.clamp(min=clip.threshold)
        case Normalise():
            return clip.length / norms.clamp(min=_shortest(norms.dtype))
        case Unclipped():
            return torch.ones_like(norms)
    raise TypeError(f"clip must be Norm, Normalise or Unclipped, got {clip!r}.")


def finite(norms: Tensor) -> Tensor:
    """The norms, unless some are not finite: no clip can bound what such a gradient does to a sum."""
    if not bool(norms.isfinite().all()):
        raise RuntimeError("A record's gradient is not finite, so that no clip bounds it: nothing was released of it.")
    return norms


def _shortest(dtype: torch.dtype) -> float:
    """The norm below which squares, and so the norm, are lost to rounding; such vectors are made longer, but not whole.

    (To normalise by a norm that is too short would pass the clip. A zero vector stays zero.)
    """
    numbers = torch.finfo(dtype)
    return float((numbers.tiny / numbers.eps) ** 0.5)


def precise(dtype: torch.dtype) -> torch.dtype:
    """The type in which to add up numbers of another: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def joint_norm(norms: Iterable[Tensor]) -> Tensor:
    """√Σ norm² over the parts of a vector, on the first part's device; each may hold one norm a record."""
    parts = list(norms)
    squares = [part.to(parts[0].device, precise(part.dtype)).square() for part in parts]
    return torch.stack([square.to(_widest(squares)) for square in squares]).sum(0).sqrt()


def _widest(parts: list[Tensor]) -> torch.dtype:
    widest = parts[0].dtype
    for part in parts:
        widest = torch.promote_types(widest, part.dtype)
    return widest
