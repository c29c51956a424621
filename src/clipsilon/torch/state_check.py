"""The check that calling a model changes neither its parameters nor its buffers.

What a forward pass writes depends on the records and gets no noise: an embedding's `max_norm`, running statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn


class CheckError(RuntimeError):
    """A check of a private training failed, and nothing of the batch was released."""


_ENTRIES = 2**16  # of a frozen tensor that are summed at once


class _Seen(NamedTuple):
    tensor: Tensor
    version: int
    content: Tensor | list[int] | None


@contextmanager
def unchanged(module: nn.Module, *, by_content: bool = False) -> Iterator[None]:
    """Raise CheckError if the block changes a parameter or a buffer of the module.

    Parameters
    ----------
    module : nn.Module
        The model.
    by_content : bool, default False
        Whether contents are compared as well, which costs a copy of what is trained for the duration of the block; of
        the rest, which may be most of a model, sums are compared. Without it, writes that PyTorch does not count
        (`p.data`) are not found.
    """
    before = {name: _see(t, by_content) for name, t in _named_tensors(module)}
    yield
    for name, t in _named_tensors(module):
        if name not in before or _differs(t, before[name]):
            raise CheckError(
                f"{name} is changed by the model's forward pass, where records leave traces without noise; remove what "
                "writes it, such as an embedding's max_norm or a running statistic, or freeze its value beforehand."
            )


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(module.named_parameters(), module.named_buffers())


def _see(t: Tensor, by_content: bool) -> _Seen:
    return _Seen(t, t._version, _content(t) if by_content else None)


def _differs(t: Tensor, seen: _Seen) -> bool:
    if t is not seen.tensor or t._version != seen.version:
        return True
    if isinstance(seen.content, Tensor):
        return not torch.equal(_bits(t), _bits(seen.content))
    return seen.content is not None and _sums(t) != seen.content


def _content(t: Tensor) -> Tensor | list[int]:
    return t.detach().clone() if t.requires_grad else _sums(t)


def _sums(t: Tensor) -> list[int]:
    """Return sums of the bits of a tensor, part by part, each entry times an odd number of its own, modulo 2⁶⁴."""
    bits = _bits(t)
    parts = (bits.view(torch.int32) if len(bits) % 4 == 0 else bits).split(_ENTRIES)
    return [int((part.long() * torch.arange(1, 2 * len(part), 2, device=t.device)).sum()) for part in parts]


def _bits(t: Tensor) -> Tensor:
    """Return the bytes of a tensor, in which a NaN equals itself."""
    return t.detach().reshape(-1).view(torch.uint8)
