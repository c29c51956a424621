"""Private logistic regression: the speed of an epoch, as ratios to Opacus and diffprivlib in the same run.

    python benchmarks/glm.py [--quick]

float64, Poisson batches of 250 records. Contenders take turns, and ratios are of medians. The peers run in
environments of their own, which are made when they are missing. Opacus gets as many threads as clipwise; its epoch is
timed with its DataLoader, and over batches that were fetched before. diffprivlib has no epochs: a whole fit of it is
set against a whole fit of `PrivateLogisticRegression` with its defaults. `--quick` leaves out the largest tables.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import clipwise as cw
from clipwise.estimators import PrivateLogisticRegression
from peers.environment import PEERS, environment

BATCH = 250
EPOCHS = 10  # of clipwise at a time, so that what is timed is not the call
SIZES = {(60_000, 9): ((100, 150)), (60_000, 500): ((25, 32)), (20_000, 5_000): ((15, 20))}  # wanted with 1, 2 threads
REPEATS = 5


class Peer:
    """A peer's script in its environment, which obeys one line at a time."""

    def __init__(self, name: str, script: str):
        command = [environment(name), PEERS / script]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: Any) -> float:
        """Seconds that the command took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return float(json.loads(self._process.stdout.readline()))


def table(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Random records."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n, d))
    return features, (features @ rng.standard_normal(d) > 0).astype(float)


def epoch(problem: cw.Problem, rule: cw.Rule, threads: int, epochs: int = EPOCHS) -> float:
    """Seconds of an epoch of clipwise."""
    steps = epochs * problem.records // BATCH
    began = time.perf_counter()
    cw.run(problem, rule, steps, record=[steps], n_jobs=threads, progress=False)
    return (time.perf_counter() - began) / epochs


def private(noise_std: float = 0.01) -> cw.Rule:
    """DP-SGD."""
    return cw.DPSGD(cw.steps.Constant(0.5), clip=1.0, noise_std=noise_std, batch=BATCH)


def plain() -> cw.Rule:
    """The same loop with clipping and noise turned off."""
    return cw.SGD(cw.steps.Constant(0.5), batch=BATCH, sampling="poisson")


def medians(contenders: dict[str, Callable[[], float]], repeats: int = REPEATS) -> dict[str, float]:
    """Seconds of each, taking turns, after one turn to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, time_one in contenders.items():
            seconds = time_one()
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(taken) for name, taken in times.items()}


def against_opacus(lines: list[tuple[str, float, str]], folder: Path) -> None:
    """An epoch, with one thread and with two."""
    peer = Peer("opacus", "opacus_epoch.py")
    for (n, d), wanted in SIZES.items():
        features, labels = table(n, d)
        np.savez(folder / "table.npz", features=features, labels=labels)
        problem = cw.Problem(features, labels, loss=cw.losses.Logistic())
        for threads in (1, 2):
            peer.ask({"file": str(folder / "table.npz"), "batch": BATCH, "threads": threads})
            seconds = medians(
                {
                    "loader": lambda: peer.ask("loader"),
                    "batches": lambda: peer.ask("batches"),
                    "clipwise": lambda: epoch(problem, private(), threads),  # noqa: B023
                    "plain": lambda: epoch(problem, plain(), threads),  # noqa: B023
                }
            )
            about = f"n = {n:,}, d = {d:,}, {threads} thread(s)"
            ours = seconds["clipwise"]
            lines.append(
                (f"Opacus with DataLoader / clipwise, {about}", seconds["loader"] / ours, f"≥ {wanted[threads - 1]}")
            )
            lines.append((f"Opacus without / clipwise, {about}", seconds["batches"] / ours, ""))
            lines.append(
                (f"clipped and noisy / neither, {about}", ours / seconds["plain"], "≤ 1.3" if threads == 1 else "")
            )


def against_diffprivlib(lines: list[tuple[str, float, str]], folder: Path) -> None:
    """A whole fit."""
    peer = Peer("diffprivlib", "diffprivlib_fit.py")
    for n, d in SIZES:
        features, labels = table(n, d)
        np.savez(folder / "table.npz", features=features, labels=labels)
        peer.ask({"file": str(folder / "table.npz"), "data_norm": float(np.sqrt(d))})
        model = PrivateLogisticRegression(classes=[0, 1], fit_intercept=False, progress=False, random_state=0, n_jobs=1)
        problem = cw.Problem(features, labels, loss=cw.losses.Logistic())
        seconds = medians(
            {
                "diffprivlib": lambda: peer.ask("fit"),
                "fit": lambda: timed(lambda: model.__sklearn_clone__().fit(features, labels)),  # noqa: B023
                "epoch": lambda: epoch(problem, private(), 1),  # noqa: B023
            },
            3,
        )
        about = f"n = {n:,}, d = {d:,}, 1 thread"
        lines.append((f"diffprivlib's fit / an epoch, {about}", seconds["diffprivlib"] / seconds["epoch"], ""))
        lines.append((f"diffprivlib's fit / a default fit, {about}", seconds["diffprivlib"] / seconds["fit"], ""))


def timed(call: Callable[[], Any]) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def growth(lines: list[tuple[str, float, str]], quick: bool) -> None:
    """Cost a record as records, and cost an entry as columns grow."""
    sizes = [500_000, 1_000_000] if quick else [500_000, 5_000_000]
    few, many = (cw.Problem(*table(n, 10), loss=cw.losses.Logistic()) for n in sizes)
    narrow, wide = (cw.Problem(*table(20_000, d), loss=cw.losses.Logistic()) for d in (500, 5_000))
    seconds = medians(
        {
            "few": lambda: epoch(few, private(), 1, 1),
            "many": lambda: epoch(many, private(), 1, 1),
            "narrow": lambda: epoch(narrow, private(), 1, 4),
            "wide": lambda: epoch(wide, private(), 1, 4),
        }
    )
    ratio = seconds["many"] / seconds["few"] * sizes[0] / sizes[1]
    lines.append((f"cost a record, n = {sizes[1]:,} over {sizes[0]:,} (d = 10)", ratio, "about 1"))
    lines.append(("cost an entry, d = 5,000 over 500", seconds["wide"] / seconds["narrow"] / 10, "about 1"))


def main() -> None:
    """Measure, and print one table."""
    warnings.simplefilter("ignore", cw.PrivacyWarning)  # many fits of random records
    lines: list[tuple[str, float, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        against_opacus(lines, Path(folder))
        against_diffprivlib(lines, Path(folder))
    growth(lines, quick="--quick" in sys.argv)
    shown = Table("what", "ratio", "wanted", title="Private logistic regression, float64, batches of 250")
    for what, value, wanted in lines:
        shown.add_row(what, f"{value:.2f}", wanted)
    Console(width=None if sys.stdout.isatty() else 120).print(shown)


if __name__ == "__main__":
    main()
