"""Descriptions of restaurants: records of the E2E challenge, from the user's file, or synthetic ones in its style.

A record is a meaning representation, `name[Aromi], food[Indian], area[riverside]`, and a sentence that expresses it.
Nothing is shipped or downloaded: the generator below has its own vocabulary.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clipsilon._core import checks

NAMES = ("Amber", "Basil", "Cedar", "Dune", "Ember", "Fern", "Grove", "Harbour")
KINDS = ("pub", "restaurant", "café")
FOODS = ("Chinese", "English", "French", "Indian", "Italian", "Japanese")
PRICES = ("cheap", "moderate", "high")
RATINGS = ("low", "average", "excellent")
AREAS = ("riverside", "city centre")

_KEYS = ("name", "eatType", "food", "priceRange", "customer rating", "area")
_FREQUENCIES = (1.0, 1.0, 1.0, 0.6, 0.6, 0.6)  # how often a restaurant has each key
_PHRASINGS = 3


class Record(NamedTuple):
    """A meaning representation, and a sentence that expresses it."""

    meaning: str
    sentence: str


def restaurants(count: int, seed: int = 0) -> list[Record]:
    """Return synthetic restaurants, each described in one of three phrasings; they depend on the seed alone."""
    rng = np.random.default_rng(checks.integer("seed", seed, least=0))
    choices = (NAMES, KINDS, FOODS, PRICES, RATINGS, AREAS)
    shape = checks.count("count", count), len(choices)
    drawn = rng.integers([len(each) for each in choices], size=shape)
    present = rng.random(shape) < _FREQUENCIES
    phrasings = rng.integers(_PHRASINGS, size=count)
    return [
        _restaurant(
            {key: each[k] for key, each, k, has in zip(_KEYS, choices, row, keys, strict=True) if has}, phrasing
        )
        for row, keys, phrasing in zip(drawn, present, phrasings, strict=True)
    ]


def _restaurant(attributes: dict[str, str], phrasing: int) -> Record:
    meaning = ", ".join(f"{key}[{value}]" for key, value in attributes.items())
    return Record(meaning, _sentence(attributes, phrasing))


def _sentence(attributes: dict[str, str], phrasing: int) -> str:
    """Return one of three sentences that express the attributes."""
    name, kind, food = attributes["name"], attributes["eatType"], attributes["food"]
    opening = (
        f"{name} is a {kind} that serves {food} food",
        f"the {kind} {name} offers {food} dishes",
        f"for {food} food there is a {kind} called {name}",
    )[phrasing]
    place = f" in the {attributes['area']}" if "area" in attributes else ""
    price = f" at {attributes['priceRange']} prices" if "priceRange" in attributes else ""
    rating = f" and has a {attributes['customer rating']} customer rating" if "customer rating" in attributes else ""
    return f"{opening}{place}{price}{rating}."


def read_e2e(path: str | PathLike[str]) -> list[Record]:
    """Read the records of a file of the E2E challenge: CSV with the columns `mr` and `ref`."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file)
        if not {"mr", "ref"} <= set(table.fieldnames or ()):
            raise ValueError(f"{Path(path).name} must have the columns mr and ref, got {table.fieldnames}.")
        records = [Record(row["mr"].strip(), row["ref"].strip()) for row in table]
    if not records or not all(record.meaning and record.sentence for record in records):
        raise ValueError(f"{Path(path).name} must have a meaning and a sentence in each row, got an empty one.")
    return records


def group_by_meaning(records: Iterable[Record]) -> dict[str, list[str]]:
    """Return all sentences of each meaning, with which a description is compared."""
    found: dict[str, list[str]] = {}
    for record in records:
        found.setdefault(record.meaning, []).append(record.sentence)
    return found


def references(meaning: str) -> list[str]:
    """Return all sentences that the generator has for a meaning."""
    attributes = dict(part.removesuffix("]").split("[") for part in meaning.split(", "))
    return [_sentence(attributes, phrasing) for phrasing in range(_PHRASINGS)]
