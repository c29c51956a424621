"""Random streams of a training: keyed by the operating system, and never repeated in a forked process."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch
from numpy.random import Generator
from torch.utils.data import DataLoader

from clipsilon.engine.streams import spawn
from clipsilon.torch.processes import Processes

# The words of the Mersenne Twister in PyTorch's state: 32 bits stored in 64 each, after the position.
_WORDS = slice(24, 24 + 8 * 624)

_forks = 0  # of this process and those it descends from; process ids alone may occur twice


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def _process() -> tuple[int, int]:
    return os.getpid(), _forks


class RandomStream:
    """A generator that may be saved, and that a forked process does not share with its parent.

    Without a seed it is AES in counter mode with a key from the operating system. A process that was forked draws a new
    key, since it would otherwise repeat the noise of its parent, and the difference of two releases has no noise.

    Parameters
    ----------
    seed : int, optional
        For reproducible experiments: whoever knows it can draw the same numbers.
    """

    def __init__(self, seed: int | None = None):
        self._seed = seed
        self._begin()

    def _begin(self) -> None:
        self._process = _process()
        self._streams = spawn(self._seed, 1)[0]

    @property
    def generator(self) -> Generator:
        """The generator, with a new key if the process was forked since the last use."""
        if self._seed is None and _process() != self._process:
            self._begin()
        return self._streams.noise

    @property
    def is_seeded(self) -> bool:
        """Whether the numbers come from a seed, and not from a key of the operating system."""
        return self._seed is not None

    def renew(self) -> None:
        """Go on with a new key; a stream from a seed begins again."""
        self._begin()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copies."""
        raise TypeError(
            "A private training cannot be copied or pickled: use optimizer.state_dict(), or save_checkpoint of the "
            "engine; a copy of its random stream would draw the same numbers."
        )

    def get_state(self) -> list[Any]:
        """Return the state as plain values."""
        _ = self.generator
        return self._streams.state()

    def set_state(self, state: list[Any]) -> None:
        """Continue from a state that `get_state` of a stream of the same kind, seeded or not, has returned."""
        self._process = _process()
        kinds = [generator.bit_generator.state["bit_generator"] for generator in self._streams]
        if [saved["bit_generator"] for saved in state] != kinds:
            self._seed = 0 if self._seed is None else None  # the other kind
            self._begin()
        self._streams.restore(state)


def make_generator(device: torch.device | str) -> torch.Generator:
    """Return a generator of PyTorch with an unpredictable state, for checks; noise and batches never come from one.

    PyTorch seeds its CPU generator with 32 bits only; here all of its state is random.
    """
    generator = torch.Generator(device)
    generator.seed()
    if generator.device.type == "cpu":
        state = generator.get_state()
        words = torch.frombuffer(bytearray(os.urandom(4 * 624)), dtype=torch.int32).long() % 2**32
        state[_WORDS] = words.view(torch.uint8)
        generator.set_state(state)
    return generator


def make_stream(source: torch.Generator | None) -> RandomStream:
    """Return a stream with a key from the operating system, or seeded by a generator of the user's if there is one."""
    if source is None:
        return RandomStream()
    return RandomStream(int(torch.randint(2**62, (), generator=source, device=source.device)))


def make_batch_stream(data_loader: DataLoader[Any], processes: Processes) -> RandomStream:
    """Return a stream for drawing batches, in the same state in all processes.

    It is seeded from the loader's own generator, if there is one.
    """
    stream = make_stream(data_loader.generator)
    stream.set_state(processes.broadcast(stream.get_state()))
    return stream
