"""The speed of private logistic regression compared with Opacus and diffprivlib in the same run.

    python benchmarks/glm.py [--quick]

float64, Poisson batches of 250 records. The peers run in environments of their own, which are created if they do not
exist. Opacus uses as many threads as clipsilon; its epoch is timed with its DataLoader, and over batches fetched in
advance. diffprivlib has no epochs: one fit is compared with one fit of `PrivateLogisticRegression` with its defaults.
The floor is a plain sum over the table, the least time in which the table can be read. `--quick` uses small tables and
few turns. Of people, 250 are drawn per batch, with all rows.
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
from float_noise import with_float_noise
from peers.environment import Peer
from results import Row, ahead, cost, main, unless_missing
from timing import ratio, seconds, turns

TOPIC = "Estimators"
BATCH = 250
EPOCHS = 10  # least number of epochs per call; more until ENTRIES are read, so that the call itself hardly counts
ENTRIES = 54_000_000
SIZES = {(60_000, 9): (100, 150), (60_000, 500): (20, 32), (20_000, 5_000): (11, 16)}  # ratios wanted with 1, 2 threads
# What clipping and noise may cost over neither, and exact sums and noise over floating point, by number of columns:
# rounding to the grid takes an operation more per entry, which wide rows hide behind memory.
MOST = {9: (1.6, 1.4), 500: (1.3, 1.2), 5_000: (1.3, 1.05)}
QUICK_SIZES = {(2_000, 9): (None, None), (1_000, 500): (None, None)}


def table(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n random records with d columns, and their labels."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n, d))
    return features, (features @ rng.standard_normal(d) > 0).astype(float)


def epoch(problem: cs.Problem, rule: cs.Rule, threads: int, epochs: int | None = None) -> float:
    """Return the seconds per epoch of clipsilon.

    Parameters
    ----------
    problem : Problem
        The records and their loss.
    rule : Rule
        The rule.
    threads : int
        Number of threads.
    epochs : int, optional
        Number of epochs to average over; by default enough for a stable time.

    Returns
    -------
    float
        Seconds.
    """
    epochs = epochs or max(EPOCHS, ENTRIES // problem.features.size)
    steps = epochs * problem.records // BATCH
    began = time.perf_counter()
    cs.run(problem, rule, steps, record=[steps], n_jobs=threads, progress=False)
    return (time.perf_counter() - began) / epochs


def private(noise_std: float = 0.01) -> cs.Rule:
    """Return DP-SGD."""
    return cs.DPSGD(cs.schedules.Constant(0.5), clip=1.0, noise_std=noise_std, batch=BATCH)


def plain() -> cs.Rule:
    """Return the same rule without clipping and noise."""
    return cs.SGD(cs.schedules.Constant(0.5), batch=BATCH, sampling="poisson")


def against_opacus(rows: list[Row], folder: Path, quick: bool) -> None:
    """Compare an epoch with Opacus's, with one thread and with two.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    folder : Path
        Where tables are written for Opacus.
    quick : bool
        Whether to use small tables and few turns.
    """
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
    """Compare an epoch with Opacus's on one table.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    peer : Peer
        Opacus, with the table loaded.
    features, labels : array
        The table.
    threads : int
        Number of threads for both.
    least : float or None
        The ratio that is wanted.
    repeats : int
        Number of turns.
    """
    problem = cs.Problem(features, labels, loss=cs.losses.Logistic())
    found = turns(
        {
            "loader": lambda: peer.ask("loader"),
            "batches": lambda: peer.ask("batches"),
            "ours": lambda: epoch(problem, private(), threads),
            "plain": lambda: epoch(problem, plain(), threads),
            "float": lambda: epoch(problem, with_float_noise(private()), threads),
            "floor": lambda: seconds(features.sum),
        },
        repeats,
    )
    about = f"an epoch, {features.shape[1]:,} columns"
    how = f"{threads} thread{'s' if threads > 1 else ''}, {repeats} turns"
    rows.append(ahead(TOPIC, about, "Opacus, DataLoader", ratio(found, "loader", "ours"), how, least))
    rows.append(ahead(TOPIC, about, "Opacus, prefetched", ratio(found, "batches", "ours"), how))
    both, noise = MOST[features.shape[1]] if threads == 1 else (None, None)
    rows.append(cost(TOPIC, about, "without clipping and noise", ratio(found, "ours", "plain"), how, most=both))
    if threads == 1:
        exact = ratio(found, "ours", "float")
        rows.append(cost(TOPIC, about, "with floating-point noise", exact, how, most=noise))
        rows.append(cost(TOPIC, about, "a sum over the table", ratio(found, "ours", "floor"), how))


def against_diffprivlib(rows: list[Row], folder: Path, quick: bool) -> None:
    """Compare a fit with diffprivlib's.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    folder : Path
        Where tables are written for diffprivlib.
    quick : bool
        Whether to use small tables and few turns.
    """
    with closing(Peer("diffprivlib", "diffprivlib_fit.py")) as peer:
        for n, d in QUICK_SIZES if quick else SIZES:
            features, labels = table(n, d)
            np.savez(folder / "table.npz", features=features, labels=labels)
            peer.ask({"file": str(folder / "table.npz"), "data_norm": float(np.sqrt(d))})
            fits_beside(rows, peer, features, labels, 1 if quick else 3)


def fits_beside(rows: list[Row], peer: Peer, features: np.ndarray, labels: np.ndarray, repeats: int) -> None:
    """Compare a fit with diffprivlib's on one table.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    peer : Peer
        diffprivlib, with the table loaded.
    features, labels : array
        The table.
    repeats : int
        Number of turns.
    """
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
    about, how = f"{features.shape[1]:,} columns", f"1 thread, {repeats} turns"
    fit = ratio(found, "diffprivlib", "fit")
    rows.append(ahead(TOPIC, f"a fit, {about}", "diffprivlib: a fit", fit, how))
    one = ratio(found, "diffprivlib", "epoch")
    rows.append(ahead(TOPIC, f"an epoch, {about}", "diffprivlib: a fit", one, how))


def growth(rows: list[Row], quick: bool) -> None:
    """Add rows for the growth of the time per record with records, and of the time per entry with columns."""
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
    rows.append(cost(TOPIC, f"time per record, n = {sizes[1]:,}, d = 10", f"n = {sizes[0]:,}", record, how))
    rows.append(cost(TOPIC, f"time per entry, d = {width:,}, n = 20,000", f"d = {width // 10:,}", entry, how))


def people(rows: list[Row], quick: bool) -> None:
    """Add rows for what it costs per row to protect people with 2.5 rows on average."""
    repeats = 2 if quick else 9
    for n, d in QUICK_SIZES if quick else [(60_000, 9), (60_000, 500)]:
        features, labels = table(n, d)
        rng = np.random.default_rng(1)
        groups = rng.permutation(np.repeat(np.arange(n), rng.integers(1, 5, n))[:n])  # one to four rows each
        each = cs.Problem(features, labels, loss=cs.losses.Logistic())
        grouped = cs.Problem(features, labels, loss=cs.losses.Logistic(), groups=groups)
        found = turns(
            {
                "grouped": lambda problem=grouped: epoch(problem, private(), 1),
                "each": lambda problem=each: epoch(problem, private(), 1),
            },
            repeats,
        )
        about, how = f"an epoch of people with 2.5 rows, {d} columns", f"1 thread, {repeats} turns"
        most = None if quick else 1.3
        rows.append(cost(TOPIC, about, "the same rows, no groups", ratio(found, "grouped", "each"), how, most=most))


def measure(rows: list[Row], quick: bool) -> None:
    """Measure against Opacus and diffprivlib, the growth of time with size, and the cost of protecting people."""
    warnings.simplefilter("ignore", cs.PrivacyWarning)  # random records need no protection
    with tempfile.TemporaryDirectory() as folder:
        with unless_missing(rows, TOPIC, "an epoch", "Opacus"):
            against_opacus(rows, Path(folder), quick)
        with unless_missing(rows, TOPIC, "a fit", "diffprivlib"):
            against_diffprivlib(rows, Path(folder), quick)
    growth(rows, quick)
    people(rows, quick)


if __name__ == "__main__":
    sys.exit(main("glm", measure, __doc__))
