"""What was spent elsewhere: by trainings that this one was resumed from, and by other engines on the same data.

States of the model and of the optimiser that are saved and loaded by PyTorch's own means carry along how many steps
were taken, in places that PyTorch keeps: the metadata of a model's state, and the first group of an optimiser's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from torch.utils.weak import WeakIdKeyDictionary

from clipsilon.torch.batch_state import BatchState

_NAME = "clipsilon"  # of the entry in states
Runs = dict[str, dict[str, Any]]  # for each training: its settings, steps, passes and faults

_trained: WeakIdKeyDictionary = WeakIdKeyDictionary()  # for each data set, or table of one: the trainings on it
_plain_lists: dict[int, _Plain] = {}  # the same for lists of numbers and strings, which have no weak references
_branches: list[_Branch] = []  # of all trainings in this process, also of those that were deleted


@dataclass(eq=False)
class _Branch:
    """How far a training has come since it was begun or resumed; few numbers, which are kept."""

    run: str
    state: BatchState
    resumed_at: int = 0

    def copy(self) -> _Branch:
        """Return the branch as it is now."""
        state = BatchState()
        state.steps = self.state.steps
        return _Branch(self.run, state, self.resumed_at)

    def is_forked_from(self, other: _Branch) -> bool:
        """Return whether both are the same training, of which each went on from the same checkpoint."""
        start = max(self.resumed_at, other.resumed_at)
        return other is not self and other.run == self.run and min(self.state.steps, other.state.steps) > start


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
    branch : _Branch
        Its name, and the steps after which it was resumed from a checkpoint.
    left : list of _Branch
        What this engine was before it loaded a checkpoint: the branches that it has taken steps on and left.
    earlier : dict
        What the trainings before it have spent, by name.
    faults_ahead : callable
        Returns why nothing can be certified of these steps wherever they are counted, such as a seed.
    budget : Path or None
        The budget file that its planned steps were charged to.
    """

    def __init__(self, settings: str, state: BatchState):
        self.settings, self.state = settings, state
        self.branch = _Branch(secrets.token_hex(8), state)
        self.left: list[_Branch] = []
        self.earlier: Runs = {}
        self.faults_ahead: Callable[[], list[str]] = list
        self.budget: Path | None = None
        _branches.append(self.branch)

    @property
    def run(self) -> str:
        """A random name of this training."""
        return self.branch.run

    def runs(self) -> Runs:
        """Return what this training and those before it have spent, as plain values."""
        if not self.state.steps:
            return dict(self.earlier)
        own = {
            "settings": self.settings,
            "steps": self.state.steps,
            "passes": self.state.passes,
            "faults": [*self.state.faults, *self.faults_ahead(), *[FOREIGN] * self.state.is_foreign],
        }
        return {**self.earlier, self.run: own}

    def add(self, runs: Runs | None) -> None:
        """Take over what a loaded state has spent; of two states of one training, the later one counts."""
        for run, spent in (runs or {}).items():
            if run != self.run and spent["steps"] >= self.earlier.get(run, spent)["steps"]:
                self.earlier[run] = spent

    def resume(self, steps: int, run: str, earlier: Runs) -> None:
        """Become the training that a checkpoint was made of.

        Parameters
        ----------
        steps : int
            Its steps at the checkpoint.
        run : str
            Its name.
        earlier : dict
            What the trainings before it have spent.
        """
        own = self.runs()
        has_gone_on = self.branch.resumed_at < self.state.steps
        if run == self.run and has_gone_on and self.state.steps < steps:
            self.state.add_fault(_FORKED)  # another engine has gone on as well, and further
        if run != self.run and self._steps_elsewhere(run) > steps:
            self.state.add_fault(_FORKED)  # a state of later steps was loaded before, whose noise is drawn again
        if has_gone_on:
            self.left.append(self.branch.copy())
            _branches.append(self.left[-1])
        self.branch.run, self.branch.resumed_at, self.earlier = run, steps, dict(earlier)
        self.add(own)

    @property
    def steps(self) -> int:
        """All steps that were taken, before and in this training."""
        return self.state.steps + sum(int(spent["steps"]) for spent in self.earlier.values())

    @property
    def passes(self) -> int:
        """All passes over the data that were begun."""
        return self.state.passes + sum(int(spent["passes"]) for spent in self.earlier.values())

    def has_left(self, run: str, steps: int) -> bool:
        """Return whether this engine has itself gone on from a checkpoint that was made after `steps`."""
        branches = [self.branch, *self.left]
        return any(branch.run == run and branch.state.steps > steps for branch in branches)

    def _steps_elsewhere(self, run: str) -> int:
        """Return the steps of another training that loaded states have told of."""
        return int(self.earlier.get(run, {"steps": 0})["steps"])

    def faults(self) -> list[str]:
        """Return why the steps before this training cannot be accounted for with its own."""
        found = [fault for spent in self.earlier.values() for fault in spent["faults"]]
        found += [_FORKED] * any(own.is_forked_from(other) for own in (self.branch, *self.left) for other in _branches)
        return found + [_OTHER_SETTINGS for spent in self.earlier.values() if spent["settings"] != self.settings][:1]


FOREIGN = "Nothing can be certified: steps were made of batches that the loader of make_private did not draw."
_OTHER_SETTINGS = (
    "Nothing can be certified: the model was resumed from a private training with other settings, or on other data, "
    "whose steps this statement does not cover; add up the statements of both trainings."
)
_FORKED = (
    "Nothing can be certified: two engines went on from the same checkpoint with the same noise, which the difference "
    "of their models does not have; resume from a checkpoint once, and take a new engine for another training."
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


class _Plain(NamedTuple):
    """A list, which is kept so that no other one gets its `id`, and the trainings on it."""

    kept: Any
    trainings: list[Lineage]


def register(dataset: Any, lineage: Lineage) -> None:
    """Remember that a training is about to use a data set."""
    for key in _keys(dataset):
        if isinstance(key, list | tuple):
            _plain_lists.setdefault(id(key), _Plain(key, [])).trainings.append(lineage)
        else:
            _trained.setdefault(key, []).append(lineage)


def has_other_training(dataset: Any, lineage: Lineage) -> bool:
    """Return whether another engine in this process has taken steps on the data set, or on a part of it."""
    return any(_is_uncounted(other, lineage) for key in _keys(dataset) for other in _trainings_on(key))


def _is_uncounted(other: Lineage, lineage: Lineage) -> bool:
    """Return whether a training has taken steps that another one does not count.

    It does if it may be resumed from it, and a budget file counts all trainings that are charged to it.
    """
    if other.run == lineage.run or (lineage.budget is not None and other.budget == lineage.budget):
        return False
    counted = lineage.earlier.get(other.run, {"steps": 0})["steps"]
    return other.state.steps > int(counted)


def _trainings_on(key: Any) -> list[Lineage]:
    if isinstance(key, list | tuple):
        return _plain_lists[id(key)].trainings if id(key) in _plain_lists else []
    return list(_trained.get(key, []))


def _keys(dataset: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the objects that a data set is recognised by; `depth` limits how far wrappers are followed."""
    if isinstance(dataset, Subset):
        yield from _keys(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield from _keys(part)
    elif isinstance(dataset, TensorDataset):
        yield from dataset.tensors
    elif isinstance(dataset, list | tuple):
        tables = [t for t in tree_leaves(list(dataset[:1])) if isinstance(t, Tensor | np.ndarray)]
        yield from tables or [dataset]
    else:
        yield dataset
        for part in _attributes(dataset) if depth else ():
            yield from _keys(part, depth - 1) if _holds_records(part, dataset) else ()


def _attributes(dataset: Any) -> Iterator[Any]:
    """Yield the attributes of a data set, and what tuples and dictionaries among them hold."""
    for part in getattr(dataset, "__dict__", {}).values():
        yield part
        yield from part if isinstance(part, tuple) else part.values() if isinstance(part, dict) else ()


def _holds_records(part: Any, dataset: Any) -> bool:
    """Whether an attribute of a data set is another data set, or a table with one row per record."""
    if isinstance(part, Dataset):
        return True
    return (hasattr(part, "shape") or isinstance(part, list)) and _length(part) == _length(dataset)


def _length(table: Any) -> int | None:
    try:
        return len(table)
    except TypeError:  # such as a tensor without dimensions
        return None
