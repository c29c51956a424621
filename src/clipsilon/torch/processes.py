"""Distributed training: the rank of this process, and sums over all processes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from clipsilon._core import checks


class Processes(NamedTuple):
    """The rank of this process, and the number of processes."""

    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process adds the noise and carries the error into a step."""
        return self.rank == 0

    def all_reduce(self, total: Tensor, device: torch.device) -> None:
        """Replace a tensor by its sum over all processes, made on the device that their backend works on."""
        if self.world > 1:
            moved = total.to(device)
            torch.distributed.all_reduce(moved)
            total.copy_(moved)

    def first_of(self, result: Tensor, device: torch.device) -> Tensor:
        """Return the first process's tensor, of the same shape and type in all, on a device."""
        moved = result.to(device)
        if self.world > 1:
            torch.distributed.broadcast(moved, src=0)
        return moved

    def broadcast(self, state: Any) -> Any:
        """Return the first process's value."""
        if self.world == 1:
            return state
        shared = [state]
        torch.distributed.broadcast_object_list(shared, src=0)
        return shared[0]


def unwrap_parallel(module: nn.Module) -> tuple[nn.Module, Processes]:
    """Return the model inside a data-parallel wrapper, if there is one, and its processes.

    Gradients are summed over processes at the step and not during the backward pass: they must be clipped first.
    """
    _refuse_shards(module)
    if isinstance(module, DistributedDataParallel | DifferentiallyPrivateDistributedDataParallel):
        return module.module, Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return module, Processes()


def _refuse_shards(module: nn.Module) -> None:
    """Refuse a model whose parameters are split among processes or devices, or copied to several devices."""
    checks.instance("module", module, nn.Module)
    is_split = any(isinstance(p, DTensor) for p in module.parameters())
    if is_split or any(isinstance(part, FullyShardedDataParallel | nn.DataParallel) for part in module.modules()):
        raise ValueError(
            "module must have whole parameters in every process, since sums and noise are exact for whole gradients, "
            "got one that is sharded (FSDP, tensor parallelism) or in DataParallel; wrap it in DistributedDataParallel."
        )
