"""What was spent elsewhere: by trainings that this one was resumed from, and by other engines on the same data.

States of the model and of the optimiser that are saved and loaded by PyTorch's own means carry along how many steps
were taken, in places that PyTorch keeps: the metadata of a model's state, and the first group of an optimiser's.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torch.utils.weak import WeakIdKeyDictionary

from clipsilon.torch.batch_state import BatchState

_NAME = "clipsilon"  # of the entry in states
Runs = dict[str, dict[str, Any]]  # for each training: its settings, steps, passes and faults

_trained: WeakIdKeyDictionary = WeakIdKeyDictionary()  # for each data set, or tensor of one: the trainings on it


class Lineage:
    """The trainings that a model went through.

    Parameters
    ----------
    settings : str
        What identifies the rule and the data of this training.
    state : BatchState
        Its counts.

    Attributes
    ----------
    run : str
        A random name of this training.
    earlier : dict
        What the trainings before it have spent, by name.
    """

    def __init__(self, settings: str, state: BatchState):
        self.settings, self.state = settings, state
        self.run = secrets.token_hex(8)
        self.earlier: Runs = {}

    def runs(self) -> Runs:
        """Return what this training and those before it have spent, as plain values."""
        if not self.state.steps:
            return dict(self.earlier)
        own = {
            "settings": self.settings,
            "steps": self.state.steps,
            "passes": self.state.passes,
            "faults": [*self.state.faults, *[FOREIGN] * self.state.is_foreign],
        }
        return {**self.earlier, self.run: own}

    def add(self, runs: Runs | None) -> None:
        """Take over what a loaded state has spent; of two states of one training, the later one counts."""
        for run, spent in (runs or {}).items():
            if run != self.run and spent["steps"] >= self.earlier.get(run, spent)["steps"]:
                self.earlier[run] = spent

    def resume(self, run: str, earlier: Runs) -> None:
        """Become the training that a checkpoint was made of."""
        self.run, self.earlier = run, dict(earlier)

    @property
    def steps(self) -> int:
        """All steps that were taken, before and in this training."""
        return self.state.steps + sum(int(spent["steps"]) for spent in self.earlier.values())

    @property
    def passes(self) -> int:
        """All passes over the data that were begun."""
        return self.state.passes + sum(int(spent["passes"]) for spent in self.earlier.values())

    def faults(self) -> list[str]:
        """Return why the steps before this training cannot be accounted for with its own."""
        found = [fault for spent in self.earlier.values() for fault in spent["faults"]]
        return found + [_OTHER_SETTINGS for spent in self.earlier.values() if spent["settings"] != self.settings][:1]


FOREIGN = "Nothing can be certified: steps were made of batches that the loader of make_private did not draw."
_OTHER_SETTINGS = (
    "Nothing can be certified: the model was resumed from a private training with other settings, or on other data, "
    "whose steps this statement does not cover; add up the statements of both trainings."
)


# States of PyTorch


def write_spent(state_dict: dict[str, Any], lineage: Lineage) -> None:
    """Add what was spent to the state of an optimiser."""
    if state_dict["param_groups"]:
        first, *others = state_dict["param_groups"]
        state_dict["param_groups"] = [{**first, _NAME: lineage.runs()}, *others]


def take_spent(groups: list[dict[str, Any]]) -> Runs:
    """Remove what was spent from an optimiser's groups, and return it."""
    found: Runs = {}
    for group in groups:
        found |= group.pop(_NAME, None) or {}
    return found


class _Hook:
    """A hook of a module that keeps what was spent, and that copies of the module do not have."""

    def __init__(self, lineage: Lineage):
        self.lineage = lineage

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Be saved as a hook that does nothing."""
        return _idle_hook, ()


class _Write(_Hook):
    def __call__(self, module: nn.Module, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
        metadata[_NAME] = self.lineage.runs()


class _Read(_Hook):
    def __call__(self, module: nn.Module, state: Any, prefix: str, metadata: dict[str, Any], *more: Any) -> None:
        self.lineage.add(metadata.get(_NAME))


def _idle_hook() -> Any:
    return _ignore


def _ignore(*args: Any) -> None:
    """Do nothing."""


def follow_states(module: nn.Module, lineage: Lineage) -> None:
    """See to it that the model's states carry what was spent, and that it is taken over where one is loaded."""
    module.register_state_dict_post_hook(_Write(lineage))
    module.register_load_state_dict_pre_hook(_Read(lineage))


# Data sets


def register(dataset: Any, lineage: Lineage) -> None:
    """Remember that a training is about to use a data set."""
    for key in _keys(dataset):
        _trained.setdefault(key, []).append(lineage)


def has_other_training(dataset: Any, lineage: Lineage) -> bool:
    """Return whether another engine in this process has taken steps on the data set, or on a part of it."""
    known = {lineage.run, *lineage.earlier}
    return any(
        other.state.steps and other.run not in known for key in _keys(dataset) for other in _trained.get(key, [])
    )


def _keys(dataset: Any) -> Iterator[Any]:
    """Yield the objects that a data set is recognised by."""
    if isinstance(dataset, Subset):
        yield from _keys(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield from _keys(part)
    elif isinstance(dataset, TensorDataset):
        yield from dataset.tensors
    elif isinstance(dataset, list | tuple):
        yield from [t for t in tree_leaves(list(dataset[:1])) if isinstance(t, torch.Tensor)]
    else:
        yield dataset
