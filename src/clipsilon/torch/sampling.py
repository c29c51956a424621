"""The package's samplers as PyTorch batch samplers, and batches that may be empty.

The sampling that runs here and the sampling in the statement are the same part of the rule. All processes draw the same
batch from streams in the same state, and each takes its slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from clipsilon._core.grouping import Grouping
from clipsilon.rules.sampling import Cyclic, Epochs, Poisson
from clipsilon.torch.batch_state import BatchState
from clipsilon.torch.generators import RandomStream
from clipsilon.torch.leftovers import UnsavedFunction
from clipsilon.torch.processes import Processes


class PrivateBatchSampler(Sampler[list[int]]):
    """Draw the batches of a pass: as many as it takes to see each record once, on average (Poisson) or exactly.

    Parameters
    ----------
    sampling : Poisson, Epochs or Cyclic
        How batches are drawn, and their expected size. In cyclic order a pass goes on where the last step was made.
    records : int
        Number of records in the data set.
    stream : RandomStream
        Source of the draws, in the same state in all processes.
    state : BatchState
        The state of the training's batches, which learns what is drawn.
    processes : Processes, default one process
        The processes that share each batch.
    grouping : Grouping, optional
        The rows of each record, if records are people with several rows; for one process only.
    """

    def __init__(
        self,
        sampling: Poisson | Epochs | Cyclic,
        records: int,
        stream: RandomStream,
        state: BatchState,
        processes: Processes | None = None,
        grouping: Grouping | None = None,
    ):
        self.grouping = grouping
        self.sampling, self.records, self.stream, self.state = sampling, records, stream, state
        self.processes = processes or Processes()
        self._start = stream.get_state()  # when the pass began
        self._skip = 0  # batches of a resumed pass that were taken before the checkpoint

    def __len__(self) -> int:
        return int(-(-self.records // self.sampling.batch))

    @property
    def is_cyclic(self) -> bool:
        """Whether all passes have the same order, which the state of the stream at their start gives."""
        return type(self.sampling) is Cyclic

    def __iter__(self) -> Iterator[list[int]]:
        skip, self._skip = self.state.steps % len(self) if self.is_cyclic else self._skip, 0
        this = self.state.begin_pass(skip)
        if skip or self.is_cyclic:
            self.stream.set_state(self._start)
        else:
            self._start = self.stream.get_state()
        for number, drawn in enumerate(self._draw()):
            if number >= skip:
                yield self._rows(drawn[self.processes.rank :: self.processes.world])
                self.state.require_current(this)

    def _rows(self, records: Tensor) -> list[int]:
        """Return the rows of a batch, and record what it is made of."""
        if self.grouping is None:
            self.state.draw(len(records))
            return list(records.tolist())
        drawn = self.grouping.rows_of(records.numpy())
        self.state.draw(len(records), np.diff(drawn.starts))
        return list(drawn.order.tolist())

    def _draw(self) -> Iterator[Tensor]:
        batch = self.sampling.batch
        if type(self.sampling) is not Poisson:
            yield from torch.from_numpy(self.stream.generator.permutation(self.records)).split(batch)
            return
        for _ in range(len(self)):
            places = self.stream.generator.integers(self.records, size=self.records)
            yield torch.from_numpy((places < batch).nonzero()[0])  # each with probability B/m, exactly

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the pass, by the steps taken in it."""
        taken = self.state.current.taken
        within = taken < len(self)
        return {
            "passes": self.state.passes,
            "start": self._start if within or self.is_cyclic else self.stream.get_state(),
            "skip": taken if within else 0,
            "strange": self.state.is_foreign,
            "faults": list(self.state.faults),
        }

    def load_state_dict(self, saved: dict[str, Any], steps: int) -> None:
        """Take up a saved position, after so many `steps`; the pass that is under way cannot go on.

        Its remaining batches would be drawn once more.
        """
        self.state.resume(steps=steps, passes=saved["passes"], taken=saved["skip"], is_foreign=saved["strange"])
        for fault in saved.get("faults", []):
            self.state.add_fault(fault)
        self._start, self._skip = saved["start"], saved["skip"]
        self.stream.set_state(self._start)

    def begin_anew(self) -> None:
        """Go on with a new pass and a new key: batches that steps were made of must not be drawn again."""
        self.state.leave_pass()
        self.stream.renew()
        self.stream.set_state(self.processes.broadcast(self.stream.get_state()))
        self._start, self._skip = self.stream.get_state(), 0


class CollateWithEmpty:
    """Collate records into a batch, and no records into an empty batch of the same form.

    Parameters
    ----------
    collate : callable
        The loader's own collate function.
    dataset : Dataset
        The records, of which the first shows the form of a batch.
    follow : callable
        Called with each batch, in the process of the training only.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], dataset: Dataset[Any], follow: Callable[[Any], Any]):
        self.collate, self.dataset, self.follow = collate, dataset, UnsavedFunction(follow)

    def __call__(self, batch: list[Any]) -> Any:
        """Return the records as one batch."""
        if not batch:
            return _empty_like(self.collate([self.dataset[0]]))
        return self.collate(batch) if get_worker_info() is not None else self.follow(self.collate(batch))


def _empty_like(batch: Any) -> Any:
    kind: Any = type(batch)
    if isinstance(batch, Tensor):
        return batch[:0]
    if isinstance(batch, Mapping):
        return kind({name: _empty_like(item) for name, item in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return kind(*map(_empty_like, batch))
    if isinstance(batch, list | tuple):
        return kind(map(_empty_like, batch))
    raise TypeError(f"data_loader must give batches of tensors, which can be empty, got {type(batch).__name__}.")


class PrivateLoader(DataLoader[Any]):
    """A loader whose batches are followed, also those that workers made."""

    def __iter__(self) -> Any:
        """Return an iterator of one pass."""
        batches = super().__iter__()
        return _Followed(batches, self.collate_fn.follow) if self.num_workers else batches  # type: ignore[attr-defined]


class _Followed:
    """An iterator of a loader, each of whose batches is followed."""

    def __init__(self, batches: Any, follow: Callable[[Any], Any]):
        self._batches, self._follow = batches, follow

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self._follow(next(self._batches))

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def make_private_loader(
    loader: DataLoader[Any], batches: PrivateBatchSampler, follow: Callable[[Any], Any]
) -> DataLoader[Any]:
    """Return a loader of the same data and settings that draws its batches by `batches`.

    Parameters
    ----------
    loader : DataLoader
        The user's loader.
    batches : PrivateBatchSampler
        Draws the batches.
    follow : callable
        Called with each batch, it returns the batch to use.
    """
    return PrivateLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=CollateWithEmpty(loader.collate_fn, loader.dataset, follow),
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
