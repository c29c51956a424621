"""Generated records in the place of the credit data, for tests that need its shape only."""

from contextlib import contextmanager

from clipsilon.datasets import generated_credit
from clipsilon.reproduce import problems

CACHES = (problems.all_credit_data, problems.credit_data)


@contextmanager
def stand_in(monkeypatch):
    """Use generated records for the duration of the block; nothing of them stays in the caches of the process."""
    monkeypatch.setattr(problems, "credit", generated_credit)
    for cached in CACHES:
        cached.cache_clear()
    try:
        yield
    finally:
        for cached in CACHES:
            cached.cache_clear()
