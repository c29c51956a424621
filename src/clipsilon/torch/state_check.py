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


class _Seen(NamedTuple):
    tensor: Tensor
    version: int
    content: Tensor | None


@contextmanager
def unchanged(module: nn.Module, *, by_content: bool = False) -> Iterator[None]:
    """Raise CheckError if the block changes a parameter or a buffer of the module.

    Parameters
    ----------
    module : nn.Module
        The model.
    by_content : bool, default False
        Whether contents are compared as well, which costs a copy for the duration of the block. Without it, writes
        that PyTorch does not count (`p.data`) are not found.
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
    return _Seen(t, t._version, t.detach().clone() if by_content else None)


def _differs(t: Tensor, seen: _Seen) -> bool:
    if t is not seen.tensor or t._version != seen.version:
        return True
    return seen.content is not None and not torch.equal(_bits(t), _bits(seen.content))


def _bits(t: Tensor) -> Tensor:
    """Return the bytes of a tensor, in which a NaN equals itself."""
    return t.detach().reshape(-1).view(torch.uint8)
