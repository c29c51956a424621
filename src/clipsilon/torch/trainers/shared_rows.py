"""Rows that a model looks up once for all records, such as those of positions, looked up for each record.

A gradient per record needs one row per record in every layer's input. Models of `transformers` look up embeddings of
positions once and add them to all records; repeating the row for each record adds the same numbers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class _Records:
    """Notes the number of records that a model is called with."""

    def __init__(self) -> None:
        self.count = 0

    def __reduce_ex__(self, protocol: object) -> Any:
        """Be saved without the number, which is not private, with the model whose hooks these are."""
        return _Records, ()

    def note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note it from the first tensor, as the private model does."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim()]
        self.count = len(tensors[0]) if tensors else 0

    def repeat(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Repeat indices that have one row for all records."""
        is_shared = len(args) == 1 and isinstance(args[0], Tensor) and args[0].dim() > 1 and len(args[0]) == 1
        return (args[0].expand(self.count, *args[0].shape[1:]),) if is_shared and self.count > 1 else None


def repeat_shared_rows(model: nn.Module) -> None:
    """See to it that trained embeddings get one row of indices per record."""
    trained = [layer for layer in model.modules() if isinstance(layer, nn.Embedding) and layer.weight.requires_grad]
    if not trained:
        return
    records = _Records()
    model.register_forward_pre_hook(records.note, with_kwargs=True)
    for layer in trained:
        layer.register_forward_pre_hook(records.repeat)
