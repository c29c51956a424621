"""Private models of tables with text, dates and gaps beside InterpretML and diffprivlib: AUC and time at equal ε.

    python benchmarks/mixed_tables.py [--quick]

All are given the same public schema, and the rows that it encodes: ours and diffprivlib's logistic regression as
numbers, with a column per level; InterpretML's `DPExplainableBoostingClassifier` with one column of levels instead,
whose type it is told, and the ranges of all others. All run with their defaults at δ = 10⁻⁵; diffprivlib has δ = 0,
hides a replaced record, and is told the longest row that the schema allows. The others hide whether a record took part.

The schema is the one that is proposed from the training rows, which stands for what the owner of the table knows: it is
not charged to anyone. Each seed has a split 80 : 20 of its own. Rows count as people: `messy` has some with several.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import warnings
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

import clipsilon as cs
from clipsilon.estimators import PrivateLogisticRegression
from peers.environment import Peer
from quality import error_ratio
from real_tables import DATA, propose
from results import Row, ahead, main, unless_missing
from timing import seconds

TOPIC = "Tables"
DELTA = 1e-5
EPSILONS = {"messy": (0.5, 1.0, 2.0), "adult": (1.0,), "credit": (1.0,)}
PEERS = {
    "InterpretML's DP-EBM": ("interpret", "interpret_tables.py"),
    "diffprivlib": ("diffprivlib", "diffprivlib_tables.py"),
}


class Split(NamedTuple):
    """Encoded rows for training and testing.

    Parameters
    ----------
    schema : Schema
        How they are encoded.
    train, test : array
        Numbers in [−1, 1].
    labels, test_labels : array of bool
        Whether a row is of the last class.
    """

    schema: cs.Schema
    train: np.ndarray
    test: np.ndarray
    labels: np.ndarray
    test_labels: np.ndarray


def split(name: str, seed: int) -> Split:
    """Return one split of a table, with the schema that is proposed from its training rows."""
    table, target = DATA[name]()
    table = table.drop(columns="person", errors="ignore")
    train, test = train_test_split(table, test_size=0.2, random_state=seed)
    schema = propose(train, target)
    encoder, last = cs.SchemaEncoder(schema, sparse_output=False), max(table[target])
    rows = encoder.fit_transform(train), encoder.transform(test)
    return Split(schema, *rows, *((part[target] == last).to_numpy() for part in (train, test)))


def longest_row(schema: cs.Schema) -> float:
    """Return the largest norm of an encoded row: 1 for each column, or more where a gap has an indicator."""
    squares = 0.0
    for name, kind in schema.columns.items():
        has_gaps = getattr(kind, "gap", None) is not None
        filled = float(np.sum(kind.encode(np.array([""]), name).toarray() ** 2)) if has_gaps else 0.0
        squares += max(1.0, filled)
    return float(np.sqrt(squares))


def with_levels(schema: cs.Schema, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return encoded rows with one column of codes for each category, and which columns hold codes.

    Parameters
    ----------
    schema : Schema
        How they are encoded.
    rows : array
        Encoded rows.

    Returns
    -------
    array, array of bool
        Yes/no columns and indicators of gaps hold codes as well.
    """
    columns, nominal, begin = [], [], 0
    for name, kind in schema.columns.items():
        block = rows[:, begin : begin + len(kind.outputs(name))]
        begin += block.shape[1]
        if kind.name == "category":
            block = block.argmax(axis=1)[:, None].astype(float)
        columns.append(block)
        nominal += [kind.name in ("category", "yes/no"), *[True] * (block.shape[1] - 1)]
    return np.hstack(columns), np.array(nominal)


def our_scores(data: Split, epsilon: float, seed: int) -> dict[str, float]:
    """Return AUC and seconds of our logistic regression with its defaults.

    Parameters
    ----------
    data : Split
        The rows.
    epsilon : float
        The budget.
    seed : int
        Seed of the noise.
    """
    model = PrivateLogisticRegression(epsilon, DELTA, classes=[False, True], random_state=seed)
    taken = seconds(lambda: model.fit(data.train, data.labels))
    return {"auc": float(roc_auc_score(data.test_labels, model.decision_function(data.test))), "seconds": taken}


def files_of(folder: Path, data: Split) -> dict[str, dict[str, Any]]:
    """Write the rows for each peer, and return the first part of its command, by its name.

    Parameters
    ----------
    folder : Path
        Where the files are written.
    data : Split
        The rows.
    """
    train, nominal = with_levels(data.schema, data.train)
    test, _ = with_levels(data.schema, data.test)
    np.savez(folder / "levels.npz", train=train, test=test, labels=data.labels, nominal=nominal)
    np.savez(folder / "numbers.npz", train=data.train, test=data.test, labels=data.labels)
    trees, regression = PEERS
    return {
        trees: {"file": str(folder / "levels.npz"), "delta": DELTA},
        regression: {"file": str(folder / "numbers.npz"), "data_norm": longest_row(data.schema)},
    }


def compare(rows: list[Row], peers: dict[str, Peer], name: str, seeds: range) -> None:
    """Add rows for the errors and the times of all peers on one table.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    peers : dict of Peer
        By their names in the table.
    name : str
        A key of `EPSILONS`.
    seeds : range
        Seeds to average over.
    """
    found: dict[tuple[float, str], list[dict[str, float]]] = {}
    for seed in seeds:
        data = split(name, seed)
        with tempfile.TemporaryDirectory() as folder:
            orders = files_of(Path(folder), data)
            for epsilon in EPSILONS[name]:
                found.setdefault((epsilon, "ours"), []).append(our_scores(data, epsilon, seed))
                for peer, process in peers.items():
                    answer = process.ask(orders[peer] | {"epsilon": epsilon, "seed": seed})
                    auc = float(roc_auc_score(data.test_labels, answer.pop("scores")))
                    found.setdefault((epsilon, peer), []).append({"auc": auc, **answer})
    for peer in peers:
        for epsilon in EPSILONS[name]:
            rows.append(error_row(f"{name}, ε = {epsilon:g}", peer, found[epsilon, peer], found[epsilon, "ours"]))
        pairs = [zip(found[epsilon, "ours"], found[epsilon, peer], strict=True) for epsilon in EPSILONS[name]]
        times = [theirs["seconds"] / ours["seconds"] for pair in pairs for ours, theirs in pair]
        how = f"time, median of {len(times)}, {len(data.train):,} rows"
        rows.append(ahead(TOPIC, f"a fit, {name}", peer, statistics.median(times), how))


def error_row(what: str, peer: str, theirs: list[dict[str, float]], ours: list[dict[str, float]]) -> Row:
    """Return a row for the error.

    Parameters
    ----------
    what : str
        Table and ε.
    peer : str
        The name of the peer.
    theirs, ours : list of dict
        AUC, one per seed.

    Returns
    -------
    Row
    """
    found, spread = error_ratio(theirs, ours, "auc")
    mine, its = (statistics.mean(one["auc"] for one in scores) for scores in (ours, theirs))
    how = f"{len(ours)} seeds, standard error {spread:.2g}; AUC {mine:.4f}, its {its:.4f}"
    return ahead(TOPIC, f"1 − AUC, {what}", peer, found, how)


def measure(rows: list[Row], quick: bool) -> None:
    """Measure all tables."""
    warnings.simplefilter("ignore")  # seeds, and schemas that nobody has checked
    peers: dict[str, Peer] = {}
    with ExitStack() as stack:
        for peer, (name, script) in PEERS.items():
            with unless_missing(rows, TOPIC, "all tables", peer):
                peers[peer] = stack.enter_context(closing(Peer(name, script)))
        for name in ["messy"] if quick else EPSILONS:
            compare(rows, peers, name, range(2 if quick else 5))


if __name__ == "__main__":
    sys.exit(main("mixed_tables", measure, __doc__))
