"""Tables as they come, with text, dates and gaps: a public schema, and what encodes by it."""

from importlib import import_module
from typing import Any

from clipsilon.tables.kinds import Category, Date, Number, YesNo
from clipsilon.tables.learn import Learnt, learn_levels, learn_ranges
from clipsilon.tables.propose import Proposal, propose_schema
from clipsilon.tables.schema import Schema

__all__ = [
    "Category",
    "Date",
    "Learnt",
    "Number",
    "Proposal",
    "Schema",
    "SchemaEncoder",
    "YesNo",
    "learn_levels",
    "learn_ranges",
    "propose_schema",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name != "SchemaEncoder":  # the only one that needs scikit-learn, which takes long to load
        raise AttributeError(f"module 'clipsilon.tables' has no attribute {name!r}")
    return import_module("clipsilon.tables.encoder").SchemaEncoder
