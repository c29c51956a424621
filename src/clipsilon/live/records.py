"""Single records: what is well formed, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np

from clipsilon._core import checks
from clipsilon.live.store import Entry
from clipsilon.problems.losses.base import Loss, label_kind


class Refused(NamedTuple):
    """A record that was refused.

    Parameters
    ----------
    place : int
        Its place in the request, from 0.
    person : str or None
        Whose it is; None if that cannot be read.
    code : str
        "invalid", "repeated" or "finished".
    reason : str
        The reason, in one sentence.
    """

    place: int
    person: str | None
    code: str
    reason: str


class RecordError(ValueError):
    """Why one record is refused: a code for machines and a sentence."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


def person_of(record: object) -> str | None:
    """Return whose a record is; None if that is not a name that every database can store."""
    try:
        return _person(record["person"]) if isinstance(record, Mapping) else None
    except (KeyError, ValueError):
        return None


def _person(value: object) -> str:
    """Return a name in the composed form of Unicode, so that an accent is spelled in one way only."""
    return normalize("NFC", checks.text("person", value))


def read_record(record: Mapping[str, Any], loss: Loss, dimension: int, ones: int) -> Entry:
    """Return a record that is well formed; raise RecordError if it is not.

    Parameters
    ----------
    record : mapping
        With "person", "features" and, if the loss has labels, "label".
    loss : Loss
        Decides which labels are valid.
    dimension : int
        The number of features.
    ones : int
        The number of ones to append, for an intercept.

    Returns
    -------
    Entry
    """
    names = {"person", "features"} if label_kind(loss) == "none" else {"person", "features", "label"}
    if not isinstance(record, Mapping) or record.keys() != names:
        raise RecordError("invalid", f"a record must have the fields {', '.join(sorted(names))}, and no others.")
    try:
        person = _person(record["person"])
        features = checks.full_vector("features", record["features"], dimension)
        label = _label(record["label"], loss) if "label" in names else 0.0
    except ValueError as problem:
        raise RecordError("invalid", str(problem)) from None
    return Entry(person, np.append(features, np.ones(ones)), label)


def _label(value: object, loss: Loss) -> float:
    number, kind = checks.number("label", value), label_kind(loss)
    if kind == "binary" and number in (0.0, 1.0):
        return number  # as below, ten times as fast
    classes = {"binary": 2, "class": getattr(loss, "classes", None)}.get(kind)
    return float(checks.labels("label", [number], 1, classes, 0.0 if kind == "nonnegative" else -np.inf)[0])
