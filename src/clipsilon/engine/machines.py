"""Whether all workers compute the same bits.

What a record adds to a sum must not depend on which worker has its chunk: that may depend on the times that other
chunks take, and so on other records. Compiled code gives the same bits where it was compiled from the same sources, by
the same compiler and for the same kind of processor.
"""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from typing import NamedTuple

import numba
import numpy as np
from numba.core.registry import cpu_target

from clipsilon._core.sources import SOURCE_DIGEST


class Machine(NamedTuple):
    """What the bits of a result depend on besides its inputs.

    Attributes
    ----------
    sources : str
        A digest of the package's sources.
    libraries : str
        The versions of the libraries that are used.
    processor : str
        The processor that code is compiled for.
    """

    sources: str
    libraries: str
    processor: str


@cache
def this_machine() -> Machine:
    """Describe the machine that this process runs on."""
    libraries = f"NumPy {np.__version__}, Numba {numba.__version__}, {' '.join(platform.libc_ver())}"
    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    digest = hashlib.blake2b(features.encode(), digest_size=8).hexdigest()  # of a list of some 2,000 characters
    return Machine(SOURCE_DIGEST, libraries, f"{triple} {name} {digest}")


def require_alike(machines: list[Machine]) -> Machine:
    """Return the machine that all are like, or raise ValueError if they differ, or have another clipsilon than here."""
    first = machines[0]
    if any(machine != first for machine in machines):
        raise ValueError(
            "Dask's workers must have processors of one kind and the same versions of clipsilon, NumPy, Numba and the "
            f"C library, got {len(set(machines))} different kinds: what a record adds could depend on other records."
        )
    if first.sources != this_machine().sources:
        raise ValueError("Dask's workers must have the same version of clipsilon as this process, got another one.")
    return first


def require_machine(expected: Machine) -> None:
    """Raise ValueError unless this process is on a machine like those that were there when the fit began."""
    if this_machine() != expected:
        raise ValueError("Dask's workers must all be like those at the beginning of the fit, got one that is not.")
