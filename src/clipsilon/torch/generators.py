"""Generators that the operating system fills: all of the state, since PyTorch seeds its CPU generator with 32 bits."""

from __future__ import annotations

import os
from typing import Any

import torch

from clipsilon.torch.processes import Processes

_WORDS = slice(24, 24 + 8 * 624)  # of the Mersenne Twister in PyTorch's state, 32 bits in 64 each, behind its position


def fresh(device: Any) -> torch.Generator:
    """A generator that nobody can know, and that `torch.manual_seed` does not touch."""
    generator = torch.Generator(device)
    generator.seed()
    if generator.device.type == "cpu":
        state = generator.get_state()
        words = torch.frombuffer(bytearray(os.urandom(4 * 624)), dtype=torch.int32).long() % 2**32
        state[_WORDS] = words.view(torch.uint8)
        generator.set_state(state)
    return generator


def for_batches(data_loader: Any, processes: Processes) -> torch.Generator:
    """A generator for the batches, the same in all processes; the loader's own, if any, decides on its seed."""
    if data_loader.generator is None:
        generator = fresh("cpu")
    else:
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=data_loader.generator)))
    generator.set_state(processes.agree(generator.get_state()))
    return generator
