"""People with several rows: digests of their ids, and columns that look like ids but were not given as groups."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.estimators.seen_rows import digest_key

_ID_NAME = re.compile(
    r"(^|[_\W])(id|uid|uuid|guid)$|[a-z](Id|ID|Uuid|UUID)$"
    r"|^(account|client|customer|household|member|patient|person|student|subject|user)s?$",
)
_FEWEST = 10  # different ids, below which a column is more likely to be a category
_MOST_ROWS = 50  # rows per id on average, likewise


def hash_people(groups: Any, rows: int, key: int | None = None) -> NDArray[np.uint64]:
    """Return 64 bits for each row, equal for rows of one person, and different for others but for chance.

    Parameters
    ----------
    groups : array-like
        One id per row.
    rows : int
        The number of rows.
    key : int, optional
        The key of the digests; that of this process by default.

    Returns
    -------
    array of uint64
        One digest per row.
    """
    codes = checks.people("groups", groups, rows)
    secret = (digest_key() if key is None else key).to_bytes(16, "little")
    _, first = np.unique(codes, return_index=True)
    ids = np.asarray(groups)[first].tolist()
    texts = (str(checks.id_text(one)) for one in ids)
    found = (hashlib.blake2b(one.encode(), digest_size=8, key=secret).digest() for one in texts)
    digests = np.fromiter((int.from_bytes(one, "little") for one in found), dtype=np.uint64, count=len(ids))
    return np.asarray(digests[codes])


def find_repeated_ids(columns: Mapping[str, Any]) -> list[str]:
    """Return the names of columns that look like ids of people, by their names, and whose values repeat.

    Parameters
    ----------
    columns : mapping of str to array-like
        The columns by name.

    Returns
    -------
    list of str
        None of them if no name looks like that of an id: values are looked at only then.
    """
    return [name for name, values in columns.items() if _ID_NAME.search(name) and _repeats(np.asarray(values))]


def _repeats(values: NDArray[Any]) -> bool:
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not np.array_equal(values, np.rint(values)):
        return False
    different = np.unique(values).size
    return _FEWEST <= different < values.size <= _MOST_ROWS * different


def advise_groups(name: str) -> str:
    """Return the sentence about a column that looks like an id."""
    return (
        f"Column {name!r} looks like the id of a person, and repeats: one row is protected, not one person. Pass it as "
        "groups= and leave it out of the features."
    )
