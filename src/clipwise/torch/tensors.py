"""What the update needs of tensors: clips as factors, and lengths over many of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from clipwise.clipping import Norm, Normalise, Unclipped


def factor(clip: Any, norms: Tensor) -> Tensor:
    """What a clip multiplies vectors of these norms by (a zero vector stays zero)."""
    match clip:
        case Norm():
            return clip.threshold / norms.clamp(min=clip.threshold)
        case Normalise():
            return torch.where(norms == 0, torch.zeros_like(norms), clip.length / norms)  # NaN is passed on
        case Unclipped():
            return torch.ones_like(norms)
    raise TypeError(f"clip must be Norm, Normalise or Unclipped, got {clip!r}.")


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
