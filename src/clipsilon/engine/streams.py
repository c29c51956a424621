"""Random streams: three generators per replicate, one per purpose.

With a seed, the streams of every replicate are spawned from it, so results do not depend on the number of
threads, and two rules with the same seed draw the same records (common random numbers). Without a seed, the
streams are AES in counter mode, each with a key from the operating system.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import numpy as np
from numpy.random import SFC64, Generator, SeedSequence
from randomgen import AESCounter

from clipsilon._core import checks


class Streams(NamedTuple):
    """The generators of one replicate.

    Parameters
    ----------
    records : numpy.random.Generator
        Draws the records of each batch.
    noise : numpy.random.Generator
        Draws the noise.
    response : numpy.random.Generator
        Passed to random responses.
    """

    records: Generator
    noise: Generator
    response: Generator

    def copy(self) -> Streams:
        """Return new, independent streams with bit generators of the same types."""
        return Streams(*(Generator(type(generator.bit_generator)()) for generator in self))

    def state(self) -> list[Any]:
        """Return the states of the generators in a form that JSON can represent."""
        return [_encode(generator.bit_generator.state) for generator in self]

    def restore(self, state: list[Any]) -> None:
        """Set the generators to states that `state` has returned."""
        for generator, saved in zip(self, state, strict=True):
            generator.bit_generator.state = _decode(saved)


class GeneratorState(NamedTuple):
    """The state of a generator, from which another generator can continue. (Ten times as fast as a copy.)"""

    kind: type
    state: Any

    @classmethod
    def of(cls, generator: Generator) -> GeneratorState:
        """Return the current state of a generator."""
        return cls(type(generator.bit_generator), generator.bit_generator.state)

    def generator(self) -> Generator:
        """Return a new generator with this state."""
        bits = self.kind()
        bits.state = self.state
        return Generator(bits)


def spawn(seed: int | None, replicates: int) -> list[Streams]:
    """Return the streams of each replicate: from a seed, or with keys from the operating system if `seed` is None."""
    if seed is None:
        return [
            Streams(*(Generator(AESCounter(key=secrets.randbits(128))) for _ in Streams._fields))
            for _ in range(replicates)
        ]
    root = SeedSequence(checks.integer("seed", seed, least=0))
    return [Streams(*(Generator(SFC64(stream)) for stream in child.spawn(3))) for child in root.spawn(replicates)]


def _encode(value: Any) -> Any:
    """Convert the state of a bit generator to values that JSON can represent."""
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "items": [int(item) for item in value]}
    return value if isinstance(value, str) else int(value)


def _decode(value: Any) -> Any:
    """Invert `_encode`."""
    if isinstance(value, dict):
        if set(value) == {"dtype", "items"}:
            return np.array(value["items"], dtype=value["dtype"])
        return {key: _decode(item) for key, item in value.items()}
    return value
