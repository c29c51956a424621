"""Random generators seeded by the operating system.

PyTorch seeds its CPU generator with 32 bits only; here all of its state is random.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data import DataLoader

from clipsilon.torch.processes import Processes

# The words of the Mersenne Twister in PyTorch's state: 32 bits stored in 64 each, after the position.
_WORDS = slice(24, 24 + 8 * 624)


def make_generator(device: torch.device | str) -> torch.Generator:
    """Return a generator with an unpredictable state, which `torch.manual_seed` does not affect."""
    generator = torch.Generator(device)
    generator.seed()
    if generator.device.type == "cpu":
        state = generator.get_state()
        words = torch.frombuffer(bytearray(os.urandom(4 * 624)), dtype=torch.int32).long() % 2**32
        state[_WORDS] = words.view(torch.uint8)
        generator.set_state(state)
    return generator


def make_batch_generator(data_loader: DataLoader[Any], processes: Processes) -> torch.Generator:
    """Return a generator for drawing batches, in the same state in all processes.

    It is seeded from the loader's own generator, if there is one.
    """
    if data_loader.generator is None:
        generator = make_generator("cpu")
    else:
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=data_loader.generator)))
    generator.set_state(processes.broadcast(generator.get_state()))
    return generator
