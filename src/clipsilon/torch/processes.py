"""Several processes: who this one is, and sums over all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


class Processes(NamedTuple):
    """The number of this process, and how many there are."""

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that adds the noise and carries the error into a step."""
        return self.rank == 0

    def add_up(self, total: Tensor) -> None:
        """Replace a tensor by its sum over all processes, the same on each."""
        if self.world > 1:
            torch.distributed.all_reduce(total)

    def agree(self, state: Tensor) -> Tensor:
        """The first process's state."""
        if self.world == 1:
            return state
        shared = [state]
        torch.distributed.broadcast_object_list(shared, src=0)
        return shared[0]


def unwrapped(module: Any) -> tuple[Any, Processes]:
    """A model that was made parallel, alone, and its processes.

    Gradients are added up at the step, not while they are computed: before clipping, a sum over processes has no use.
    """
    if isinstance(module, DistributedDataParallel | DifferentiallyPrivateDistributedDataParallel):
        return module.module, Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return module, Processes()
