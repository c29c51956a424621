"""The category of warnings about privacy, and the sentence about a δ that is too large."""

import warnings


class PrivacyWarning(UserWarning):
    """Something that a privacy statement does not cover, or that weakens it."""


UNITS = {"record": "records", "person": "people"}
"""What a statement protects one of, and the word for several."""


def large_delta(delta: float, records: int, unit: str = "record") -> list[str]:
    """Return a sentence if δ ≥ 1/n, else nothing: publishing a random record is (0, 1/n)-private.

    Parameters
    ----------
    delta : float
        The δ at which a release is stated.
    records : int
        n, the number of records or people.
    unit : {"record", "person"}
        Which of them.
    """
    if delta * records < 1:
        return []
    return [
        f"δ = {delta:g} is at least 1 in {records} {UNITS[unit]}, which permits releasing a whole record: choose a δ "
        f"well below {1 / records:.2g}."
    ]


def warn_about_delta(delta: float, records: int, stacklevel: int = 2, unit: str = "record") -> None:
    """Warn if δ is too large to protect anybody.

    Parameters
    ----------
    delta : float
        The δ at which a release is stated.
    records : int
        n, the number of records or, under local privacy, of users.
    stacklevel : int, default 2
        As in `warnings.warn`, counted from this function.
    unit : {"record", "person"}
        What n counts.
    """
    for sentence in large_delta(delta, records, unit):
        warnings.warn(sentence, PrivacyWarning, stacklevel=stacklevel + 1)
