"""Restaurants described in a sentence: the E2E challenge's records, from the user's file or made up in its style.

A record is a meaning representation, `name[Aromi], food[Indian], area[riverside]`, and a sentence that says so. Nothing
is shipped or downloaded: the generator below has words of its own.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
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
_TOLD = (1.0, 1.0, 1.0, 0.6, 0.6, 0.6)  # how often a restaurant has them
_TURNS = 3


class Record(NamedTuple):
    """A meaning representation, and a sentence that expresses it."""

    meaning: str
    sentence: str


def restaurants(count: int, seed: int = 0) -> list[Record]:
    """Made-up restaurants, each described by one of several turns of phrase; the same for the same seed."""
    rng = np.random.default_rng(checks.integer("seed", seed, least=0))
    choices = (NAMES, KINDS, FOODS, PRICES, RATINGS, AREAS)
    shape = checks.count("count", count), len(choices)
    drawn = rng.integers([len(each) for each in choices], size=shape)
    told = rng.random(shape) < _TOLD
    turns = rng.integers(_TURNS, size=count)
    return [
        _restaurant({key: each[k] for key, each, k, tell in zip(_KEYS, choices, row, tells, strict=True) if tell}, turn)
        for row, tells, turn in zip(drawn, told, turns, strict=True)
    ]


def _restaurant(said: dict[str, str], turn: int) -> Record:
    return Record(", ".join(f"{key}[{value}]" for key, value in said.items()), _sentence(said, turn))


def _sentence(said: dict[str, str], turn: int) -> str:
    """One of three turns of phrase for what is said."""
    name, kind, food = said["name"], said["eatType"], said["food"]
    opening = (
        f"{name} is a {kind} that serves {food} food",
        f"the {kind} {name} offers {food} dishes",
        f"for {food} food there is a {kind} called {name}",
    )[turn]
    place = f" in the {said['area']}" if "area" in said else ""
    price = f" at {said['priceRange']} prices" if "priceRange" in said else ""
    rating = f" and has a {said['customer rating']} customer rating" if "customer rating" in said else ""
    return f"{opening}{place}{price}{rating}."


def read_e2e(path: str | PathLike[str]) -> list[Record]:
    """The records of a file of the E2E challenge: CSV with the columns `mr` and `ref`."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file)
        if not {"mr", "ref"} <= set(table.fieldnames or ()):
            raise ValueError(f"{Path(path).name} must have the columns mr and ref, got {table.fieldnames}.")
        records = [Record(row["mr"].strip(), row["ref"].strip()) for row in table]
    if not records or not all(record.meaning and record.sentence for record in records):
        raise ValueError(f"{Path(path).name} must have a meaning and a sentence in each row, got an empty one.")
    return records


def by_meaning(records: Iterable[Record]) -> dict[str, list[str]]:
    """All sentences of each meaning: what a description is compared with."""
    found: dict[str, list[str]] = {}
    for record in records:
        found.setdefault(record.meaning, []).append(record.sentence)
    return found


def references(meaning: str) -> list[str]:
    """All sentences that the generator has for a meaning."""
    said = dict(part.removesuffix("]").split("[") for part in meaning.split(", "))
    return [_sentence(said, turn) for turn in range(_TURNS)]


def bleu(written: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
    """Corpus BLEU of sacrebleu, in per cent, where each text may have several references."""
    from sacrebleu.metrics import BLEU

    most = max(map(len, expected))
    columns = [[each[k] if k < len(each) else None for each in expected] for k in range(most)]
    return float(BLEU().corpus_score(list(written), columns).score)


def rouge_l(written: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
    """Mean ROUGE-L F1 of rouge-score, in per cent, each text against its best reference."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    best = [
        max(scorer.score(right, text)["rougeL"].fmeasure for right in several)
        for text, several in zip(written, expected, strict=True)
    ]
    return 100.0 * float(np.mean(best))
