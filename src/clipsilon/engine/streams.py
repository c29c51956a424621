"""Random streams: three generators a replicate, so that rules can share one and not the others.

With a seed, every replicate's streams are spawned from it: results do not depend on the number of
threads, and two rules run with the same seed draw the same records (common random numbers). Without
a seed the streams are AES in counter mode, each keyed by the operating system.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import numpy as np
from numpy.random import SFC64, Generator, SeedSequence
from randomgen import AESCounter

from clipsilon._core import checks


class Streams(NamedTuple):
    """The generators of one replicate."""

    records: Generator  # which records are drawn
    noise: Generator
    response: Generator  # what random responses draw from

    def copy(self) -> Streams:
        """Streams of the same kind in their own right."""
        return Streams(*(Generator(type(generator.bit_generator)()) for generator in self))

    def state(self) -> list[Any]:
        """The states of the generators, as JSON can hold them."""
        return [_encode(generator.bit_generator.state) for generator in self]

    def restore(self, state: list[Any]) -> None:
        """Continue from states saved earlier."""
        for generator, saved in zip(self, state, strict=True):
            generator.bit_generator.state = _decode(saved)


class GeneratorState(NamedTuple):
    """A generator as it is at one moment, to go on from elsewhere. (Ten times as fast as a copy.)"""

    kind: type
    state: Any

    @classmethod
    def of(cls, generator: Generator) -> GeneratorState:
        """The present moment of a generator."""
        return cls(type(generator.bit_generator), generator.bit_generator.state)

    def generator(self) -> Generator:
        """A generator that goes on from there."""
        bits = self.kind()
        bits.state = self.state
        return Generator(bits)


def spawn(seed: int | None, replicates: int) -> list[Streams]:
    """The streams of each replicate."""
    if seed is None:
        return [
            Streams(*(Generator(AESCounter(key=secrets.randbits(128))) for _ in Streams._fields))
            for _ in range(replicates)
        ]
    root = SeedSequence(checks.integer("seed", seed, least=0))
    return [Streams(*(Generator(SFC64(stream)) for stream in child.spawn(3))) for child in root.spawn(replicates)]


def _encode(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "items": [int(item) for item in value]}
    return value if isinstance(value, str) else int(value)


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"dtype", "items"}:
            return np.array(value["items"], dtype=value["dtype"])
        return {key: _decode(item) for key, item in value.items()}
    return value
