"""Private logistic regression: the speed of an epoch, as ratios to Opacus and diffprivlib in the same run.

    python benchmarks/glm.py [--quick]

float64, Poisson batches of 250 records. The peers run in environments of their own, which are made when they are
missing. Opacus gets as many threads as clipsilon; its epoch is timed with its DataLoader, and over batches that were
fetched before. diffprivlib has no epochs: a whole fit of it is set against a whole fit of `PrivateLogisticRegression`
with its defaults. The floor is a plain sum over the table from front to end, the least that reading it can take.
`--quick` takes small tables and few turns.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np

import clipsilon as cs
from clipsilon.estimators import PrivateLogisticRegression
from peers.environment import Peer
from results import Row, ahead, cost, main, unless_missing
from timing import ratio, seconds, turns

TOPIC = "Estimators"
BATCH = 250
EPOCHS = 10  # of clipsilon at a time, and as many more as it takes for ENTRIES: what is timed is not the call
ENTRIES = 54_000_000
SIZES = {(60_000, 9): (100, 150), (60_000, 500): (25, 32), (20_000, 5_000): (15, 20)}  # wanted with 1, 2 threads
QUICK_SIZES = {(2_000, 9): (None, None), (1_000, 500): (None, None)}


def table(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Random records."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n, d))
    return features, (features @ rng.standard_normal(d) > 0).astype(float)


def epoch(problem: cs.Problem, rule: cs.Rule, threads: int, epochs: int | None = None) -> float:
    """Seconds of an epoch of clipsilon."""
    epochs = epochs or max(EPOCHS, ENTRIES // problem.features.size)
    steps = epochs * problem.records // BATCH
    began = time.perf_counter()
    cs.run(problem, rule, steps, record=[steps], n_jobs=threads, progress=False)
    return (time.perf_counter() - began) / epochs


def private(noise_std: float = 0.01) -> cs.Rule:
    """DP-SGD."""
    return cs.DPSGD(cs.schedules.Constant(0.5), clip=1.0, noise_std=noise_std, batch=BATCH)


def plain() -> cs.Rule:
    """The same loop with clipping and noise turned off."""
    return cs.SGD(cs.schedules.Constant(0.5), batch=BATCH, sampling="poisson")


def against_opacus(rows: list[Row], folder: Path, quick: bool) -> None:
    """An epoch, with one thread and with two."""
    with closing(Peer("opacus", "opacus_epoch.py")) as peer:
        for (n, d), wanted in (QUICK_SIZES if quick else SIZES).items():
            features, labels = table(n, d)
            np.savez(folder / "table.npz", features=features, labels=labels)
            for threads, least in zip((1, 2), wanted, strict=True):
                peer.ask({"file": str(folder / "table.npz"), "batch": BATCH, "threads": threads})
                epochs_beside(rows, peer, features, labels, threads, least, 2 if quick else 5)


def epochs_beside(
    rows: list[Row],
    peer: Peer,
    features: np.ndarray,
    labels: np.ndarray,
    threads: int,
    least: float | None,
    repeats: int,
) -> None:
    """One table, one number of threads."""
    problem = cs.Problem(features, labels, loss=cs.losses.Logistic())
    found = turns(
        {
            "loader": lambda: peer.ask("loader"),
            "batches": lambda: peer.ask("batches"),
            "ours": lambda: epoch(problem, private(), threads),
            "plain": lambda: epoch(problem, plain(), threads),
            "floor": lambda: seconds(features.sum),
        },
        repeats,
    )
    about = f"an epoch, n = {len(labels):,}, d = {features.shape[1]:,}"
    how = f"{threads} thread{'s' if threads > 1 else ''}, {repeats} turns"
    rows.append(ahead(TOPIC, about, "Opacus with its DataLoader", ratio(found, "loader", "ours"), how, least))
    rows.append(ahead(TOPIC, about, "Opacus, batches fetched before", ratio(found, "batches", "ours"), how))
    most = 1.3 if threads == 1 else None
    rows.append(cost(TOPIC, about, "without clipping and noise", ratio(found, "ours", "plain"), how, most=most))
    if threads == 1:
        rows.append(cost(TOPIC, about, "a sum over the table", ratio(found, "ours", "floor"), how))


def against_diffprivlib(rows: list[Row], folder: Path, quick: bool) -> None:
    """A whole fit."""
    with closing(Peer("diffprivlib", "diffprivlib_fit.py")) as peer:
        for n, d in QUICK_SIZES if quick else SIZES:
            features, labels = table(n, d)
            np.savez(folder / "table.npz", features=features, labels=labels)
            peer.ask({"file": str(folder / "table.npz"), "data_norm": float(np.sqrt(d))})
            fits_beside(rows, peer, features, labels, 1 if quick else 3)


def fits_beside(rows: list[Row], peer: Peer, features: np.ndarray, labels: np.ndarray, repeats: int) -> None:
    """One table."""
    model = PrivateLogisticRegression(classes=[0, 1], fit_intercept=False, progress=False, random_state=0, n_jobs=1)
    problem = cs.Problem(features, labels, loss=cs.losses.Logistic())
    found = turns(
        {
            "diffprivlib": lambda: peer.ask("fit"),
            "fit": lambda: seconds(lambda: model.__sklearn_clone__().fit(features, labels)),
            "epoch": lambda: epoch(problem, private(), 1),
        },
        repeats,
    )
    about, how = f"n = {len(labels):,}, d = {features.shape[1]:,}", f"1 thread, {repeats} turns"
    fit = ratio(found, "diffprivlib", "fit")
    rows.append(ahead(TOPIC, f"a fit by defaults, {about}", "diffprivlib: a fit", fit, how))
    one = ratio(found, "diffprivlib", "epoch")
    rows.append(ahead(TOPIC, f"an epoch, {about}", "diffprivlib: a fit", one, how))


def growth(rows: list[Row], quick: bool) -> None:
    """Cost a record as records, and cost an entry as columns grow."""
    sizes, width, repeats = ([5_000, 10_000], 500, 2) if quick else ([500_000, 5_000_000], 5_000, 5)
    few, many = (cs.Problem(*table(n, 10), loss=cs.losses.Logistic()) for n in sizes)
    narrow, wide = (cs.Problem(*table(20_000, d), loss=cs.losses.Logistic()) for d in (width // 10, width))
    found = turns(
        {
            "few": lambda: epoch(few, private(), 1, 1) / sizes[0],
            "many": lambda: epoch(many, private(), 1, 1) / sizes[1],
            "narrow": lambda: epoch(narrow, private(), 1, 4) / (width // 10),
            "wide": lambda: epoch(wide, private(), 1, 4) / width,
        },
        repeats,
    )
    how = f"1 thread, {repeats} turns"
    record, entry = ratio(found, "many", "few"), ratio(found, "wide", "narrow")
    rows.append(cost(TOPIC, f"a record, n = {sizes[1]:,}, d = 10", f"n = {sizes[0]:,}", record, how))
    rows.append(cost(TOPIC, f"an entry, d = {width:,}, n = 20,000", f"d = {width // 10:,}", entry, how))


def measure(rows: list[Row], quick: bool) -> None:
    """All of it."""
    warnings.simplefilter("ignore", cs.PrivacyWarning)  # many fits of random records
    with tempfile.TemporaryDirectory() as folder:
        with unless_missing(rows, TOPIC, "an epoch", "Opacus"):
            against_opacus(rows, Path(folder), quick)
        with unless_missing(rows, TOPIC, "a fit", "diffprivlib"):
            against_diffprivlib(rows, Path(folder), quick)
    growth(rows, quick)


if __name__ == "__main__":
    sys.exit(main("glm", measure, __doc__))
