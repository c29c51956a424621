"""The samplers of the package as PyTorch batch samplers, and batches that may be empty.

Sampling here and sampling in the statement are the same part of the rule. All processes draw the same batch from
generators in the same state, and each takes its own share of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from clipsilon.rules.sampling import Poisson

_LEFT = "A pass cannot go on after another one was begun, or a checkpoint was loaded: iterate the loader anew."

_ROWS = (
    "A step must have one row a record of one batch, since each row is clipped alone, got {} rows where {} records "
    "were drawn; with workers, make a step of every batch."
)


class Batches(Sampler[list[int]]):
    """The batches of one pass: as many as it takes to see each record once, on average (Poisson) or exactly."""

    def __init__(self, sampling: Any, records: int, generator: torch.Generator, rank: int = 0, world: int = 1):
        self.sampling, self.records, self.generator = sampling, records, generator
        self.rank, self.world = rank, world
        self.passes = 0  # of which some step was made
        self.fetched = 0  # batches of this pass; with workers, ahead of the steps
        self.taken = 0  # batches of this pass up to the last that a step was made of
        self.are_strange = False  # whether a step was made without a batch from here: another loader is in use
        self.on_pass: Callable[[], None] = lambda: None  # called when a pass begins
        self.on_batch: Callable[[], None] | None = None  # called when the next batch is fetched, if none is ahead
        self._start = generator.get_state()  # of the generator when the pass began
        self._counted = False  # whether the pass is one of `passes`
        self._skip = 0  # batches of a resumed pass that were taken before
        self._sizes: deque[int] = deque()  # of the batches that a step may be made of, in their order
        self._current = object()  # stands for the pass that may go on: the last that was begun

    def __len__(self) -> int:
        return int(-(-self.records // self.sampling.batch))

    def __iter__(self) -> Iterator[list[int]]:
        self.on_pass()
        current = self._current = object()
        skip, self._skip = self._skip, 0
        self.fetched = self.taken = skip
        self._sizes.clear()
        self._counted = bool(skip)
        if skip:
            self.generator.set_state(self._start)
        else:
            self._start = self.generator.get_state()
        if self.on_batch is None:  # a step may be made of any batch that was fetched, of the last pass as well
            self._count()
        for number, drawn in enumerate(self._draw()):
            if number >= skip:
                share = drawn[self.rank :: self.world].tolist()
                self._fetch(number, len(share))
                yield share
                if self._current is not current:  # the generator is no longer where this pass left it
                    raise RuntimeError(_LEFT)

    def _count(self) -> None:
        self.passes += not self._counted
        self._counted = True

    def _fetch(self, number: int, records: int) -> None:
        if self.on_batch is not None:
            self.on_batch()
            self._sizes.clear()  # of batches that were left out
        self.fetched = number + 1
        self._sizes.append(records)

    def take(self, rows: int) -> None:
        """Count a step of so many rows; where none is fetched ahead, it is made of the last batch."""
        self._count()
        if not self._sizes:
            self.are_strange = True
        elif not self.are_strange and rows > max(self._sizes[0], 1):  # of no record, one is made up
            raise RuntimeError(_ROWS.format(rows, self._sizes[0]))
        else:
            self._sizes.popleft()
        self.taken = self.taken + 1 if self.on_batch is None else self.fetched

    def _draw(self) -> Iterator[Tensor]:
        if type(self.sampling) is not Poisson:
            yield from torch.randperm(self.records, generator=self.generator).split(self.sampling.batch)
            return
        rate = self.sampling.batch / self.records
        for _ in range(len(self)):
            coins = torch.rand(self.records, generator=self.generator, dtype=torch.float64)
            yield (coins < rate).nonzero().flatten()

    def state_dict(self) -> dict[str, Any]:
        """Where the pass stands, by the steps made of it."""
        within = self.taken < len(self)
        return {
            "passes": self.passes,
            "start": self._start if within else self.generator.get_state(),
            "skip": self.taken if within else 0,
            "strange": self.are_strange,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a pass, and with no other: batches that it has fetched would come again."""
        self._current = object()
        self.passes, self._start, self._skip = state["passes"], state["start"], state["skip"]
        self.are_strange = state["strange"]
        self.fetched = self.taken = self._skip
        self._sizes.clear()
        self.generator.set_state(self._start)


class Collate:
    """A collate function that also makes empty batches: one record's, cut to no record."""

    def __init__(self, collate: Callable[[list[Any]], Any], dataset: Any):
        self.collate, self.dataset = collate, dataset

    def __call__(self, batch: list[Any]) -> Any:
        """The records as one batch."""
        return self.collate(batch) if batch else _none_of(self.collate([self.dataset[0]]))


def _none_of(batch: Any) -> Any:
    kind: Any = type(batch)
    if isinstance(batch, Tensor):
        return batch[:0]
    if isinstance(batch, Mapping):
        return kind({name: _none_of(item) for name, item in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return kind(*map(_none_of, batch))
    if isinstance(batch, list | tuple):
        return kind(map(_none_of, batch))
    raise TypeError(f"data_loader must give batches of tensors, which can be empty, got {type(batch).__name__}.")


def private_loader(loader: Any, batches: Batches) -> Any:
    """The same loader with other batches."""
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=Collate(loader.collate_fn, loader.dataset),
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
