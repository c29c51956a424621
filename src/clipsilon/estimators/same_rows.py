"""Whether a chunk still has the rows that it had at first, in the same order.

Where batches follow a fixed order, or each record has a memory, the number of a row must stand for the same record at
every step: otherwise a record may take part more often than the certificate says, or enter the memory of another one.
A source that Dask reads again need not return its rows in the same order. So digests of all records are taken once and
kept by the workers, and the driver keeps a fingerprint of each chunk's digests, in case they are computed again.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon.estimators.inputs import Labels
from clipsilon.estimators.seen_rows import Digests, hash_rows


class KnownRows(NamedTuple):
    """The records of a chunk as they were at first.

    Parameters
    ----------
    key : int
        The key of the digests.
    digests : array of uint64
        One per record, in the order of the rows.
    """

    key: int
    digests: Digests


def know_rows(key: int, x: Any, own: Labels, people: Digests | None = None) -> KnownRows:
    """Return the digests of records.

    Parameters
    ----------
    key : int
        The key of the digests.
    x : array or sparse matrix in compressed rows
        The features, one row per record.
    own : tuple of array
        Labels, and weights or None.
    people : array of uint64, optional
        A digest of the id of each row's person.
    """
    labels, weights = own
    others = np.column_stack((labels, np.ones(labels.size) if weights is None else weights))
    found = hash_rows(x, key) + hash_rows(others, key + 1)
    return KnownRows(key, found if people is None else found + people)


def fingerprint(known: KnownRows) -> bytes:
    """Return 16 bytes that stand for all digests in their order."""
    return hashlib.blake2b(known.digests.tobytes(), digest_size=16).digest()


def check_rows(
    known: KnownRows, rows: slice | NDArray[np.int64], x: Any, own: Labels, people: Digests | None = None
) -> None:
    """Raise ValueError unless records are those that stood in these rows at first.

    Parameters
    ----------
    known : KnownRows
        The records of the chunk.
    rows : slice or array of int
        Rows of the chunk.
    x : array or sparse matrix in compressed rows
        The features of these rows only.
    own : tuple of array
        Their labels, and weights or None.
    people : array of uint64, optional
        A digest of the id of each row's person.
    """
    if not np.array_equal(know_rows(known.key, x, own, people).digests, known.digests[rows]):
        raise ValueError(f"X, y and sample_weight must be the same at every step{_ADVICE}")


def check_fingerprint(known: KnownRows, expected: bytes) -> None:
    """Raise ValueError unless the digests of a chunk are those whose fingerprint was taken at first."""
    if fingerprint(known) != expected:
        raise ValueError(f"X, y and sample_weight must be the same whenever they are read{_ADVICE}")


_ADVICE = ", got a chunk with other rows, or in another order; persist them, or read from files that nobody writes."
