"""What a training leaves on a model's layers and parameters, which is no part of the model.

Inputs of layers, and gradients and norms per record, are rows of the data. A model is saved and copied without them, at
any time.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import Tensor, nn

_OF_PARAMETERS = {
    "grad_sample",
    "_norm_sample",
    "_current_grad_sample",
    "_forward_counter",
    "summed_grad",
    "__getstate__",
}


class Unsaved(list[Any]):
    """A list that copies and pickles as an empty one."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Be saved as an empty list."""
        return list, ()

    def __deepcopy__(self, memo: Any) -> list[Any]:
        return []


class UnsavedFunction:
    """A function that copies and pickles as None, since its closure cannot be pickled.

    Parameters
    ----------
    function : callable
        The function.
    """

    def __init__(self, function: Any):
        self._function = function

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self._function(*args)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Be saved as None."""
        return type(None), ()


def leave_unsaved(module: nn.Module) -> None:
    """See to it that what a training leaves on a model's parameters is neither saved nor copied with them."""
    for p in module.parameters():
        p.__getstate__ = MethodType(_state_without_leftovers, p)  # type: ignore[attr-defined]


def _state_without_leftovers(p: Tensor) -> dict[str, Any]:
    return {name: value for name, value in p.__dict__.items() if name not in _OF_PARAMETERS}
