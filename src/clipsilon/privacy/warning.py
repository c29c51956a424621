"""The category of warnings about privacy, and the one about δ."""


class PrivacyWarning(UserWarning):
    """Something that a privacy statement does not cover, or that weakens it."""


def large_delta(delta: float, records: int) -> list[str]:
    """Return a sentence if δ is at least 1 in the number of records, else nothing."""
    if delta * records < 1:
        return []
    return [f"δ = {delta:g} is at least 1 in {records} records: releasing a whole record at random would be allowed."]
