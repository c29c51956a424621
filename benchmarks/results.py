"""Results of benchmarks: rows of ratios, one file per part in `benchmarks/results/`, from which the page is made."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from peers.environment import PeerError, pins

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("clipsilon", "numpy", "numba", "scikit-learn", "torch", "opacus", "dp-accounting", "dask")
PEERS = {
    "jax": ("jax",),
    "jax-privacy": ("jax-privacy",),
    "opake": ("opake-dpftrl",),
    "diffprivlib": ("diffprivlib",),
    "interpret": ("interpret-core",),
}


class Row(NamedTuple):
    """One comparison.

    Parameters
    ----------
    kind : {"peer", "cost"}
        A comparison with a peer, where a ratio above 1 means that clipsilon is ahead; or the cost of clipsilon over the
        cost of one of its parts.
    topic : str
        The topic on the page.
    ours, other : str
        What is compared with what.
    ratio : float or None
        The result; None if it was not measured.
    how : str
        How it was measured, or why it was not.
    least, most : float, optional
        The limits that are wanted.
    """

    kind: str
    topic: str
    ours: str
    other: str
    ratio: float | None
    how: str
    least: float | None = None
    most: float | None = None

    @property
    def kept(self) -> bool:
        """Return whether the ratio is within the limits; True if it was not measured."""
        return self.ratio is None or (self.least or 0.0) <= self.ratio <= (self.most or math.inf)

    @property
    def wanted(self) -> str:
        """Return the limits as text."""
        limits = [f"≥ {self.least:.3g}"] if self.least is not None else []
        return ", ".join(limits + ([f"≤ {self.most:.3g}"] if self.most is not None else []))

    @property
    def shown(self) -> str:
        """Return the ratio with three digits, or with four where three would hide who is ahead."""
        if self.ratio is None:
            return "–"
        if self.ratio >= 100:
            return f"{self.ratio:,.0f}"
        return f"{self.ratio:#.{3 if abs(self.ratio - 1) >= 0.005 else 4}g}"


def ahead(topic: str, ours: str, other: str, ratio: float, how: str, least: float | None = None) -> Row:
    """Return a comparison with a peer.

    Parameters
    ----------
    topic, ours, other, how, least
        As in `Row`.
    ratio : float
        Finite and above 0.

    Returns
    -------
    Row
        The row.
    """
    return Row("peer", topic, ours, other, _checked(ratio), how, least)


def cost(
    topic: str,
    ours: str,
    other: str,
    ratio: float,
    how: str = "",
    least: float | None = None,
    most: float | None = None,
) -> Row:
    """Return the cost of clipsilon over the cost of one of its parts.

    Parameters
    ----------
    topic, ours, other, how, least, most
        As in `Row`.
    ratio : float
        Finite and above 0.

    Returns
    -------
    Row
        The row.
    """
    return Row("cost", topic, ours, other, _checked(ratio), how, least, most)


def _checked(ratio: float) -> float:
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError(f"ratio must be finite and positive, got {ratio}.")
    return float(ratio)


@contextmanager
def unless_missing(rows: list[Row], topic: str, ours: str, peer: str) -> Iterator[None]:
    """Skip the rest of the block, and add a row that says so, if a peer cannot be installed or fails.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    topic, ours : str
        As in `Row`.
    peer : str
        The name of the peer.
    """
    try:
        yield
    except PeerError as error:
        print(f"{peer}: {error}", file=sys.stderr)
        rows.append(Row("peer", topic, ours, peer, None, f"not run: {error}"))


def main(part: str, measure: Callable[[list[Row], bool], None], about: str) -> int:
    """Parse the command line, measure one part, and print and store its rows.

    Parameters
    ----------
    part : str
        The name of the part.
    measure : callable
        Appends rows to a list; its second argument is whether to measure quickly.
    about : str
        The help text.

    Returns
    -------
    int
        The exit status: 1 if something was not measured or a limit is missed, else 0.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few turns, to check that everything works"
    )
    quick = parser.parse_args().quick
    return keep(part, lambda rows: measure(rows, quick), quick)


def keep(part: str, measure: Callable[[list[Row]], None], quick: bool = False) -> int:
    """Measure one part, and store its rows even if it is interrupted.

    Parameters
    ----------
    part : str
        The name of the part.
    measure : callable
        Appends rows to a list.
    quick : bool, default False
        Whether sizes are small; such rows are stored separately.

    Returns
    -------
    int
        The exit status: 1 if something was not measured or a limit is missed, else 0.
    """
    rows: list[Row] = []
    began, finished = time.perf_counter(), False
    try:
        measure(rows)
        finished = True
    except KeyboardInterrupt:
        print(f"{part}: interrupted; what was measured is kept.", file=sys.stderr)
    finally:
        write(part, rows, time.perf_counter() - began, finished, quick)
        show(part, rows)
    return 0 if finished and all(row.ratio is not None and row.kept for row in rows) else 1


def write(part: str, rows: list[Row], seconds: float, finished: bool, quick: bool) -> None:
    """Store the rows of one part with the date, the machine and the versions.

    Parameters
    ----------
    part : str
        The name of the part.
    rows : list of Row
        The results.
    seconds : float
        Duration of the measurement.
    finished : bool
        Whether the part ran to its end.
    quick : bool
        Whether sizes were small.
    """
    found = {
        "part": part,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "minutes": round(seconds / 60, 1),
        "finished": finished,
        "machine": machine(),
        "versions": versions(),
        "rows": [row._asdict() for row in rows],
    }
    file(part, quick).parent.mkdir(parents=True, exist_ok=True)
    file(part, quick).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def file(part: str, quick: bool = False) -> Path:
    """Return the file of a part's rows; quick runs have a folder of their own, as the page does not use them."""
    return (RESULTS / "quick" if quick else RESULTS) / f"{part}.json"


def read(path: Path) -> dict[str, Any]:
    """Return what `write` stored, with rows as `Row`."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {**found, "rows": [Row(**row) for row in found["rows"]]}


def show(part: str, rows: list[Row]) -> None:
    """Print the rows."""
    table = Table("clipsilon", "against", "ratio", "wanted", "how", title=part)
    for row in rows:
        table.add_row(f"{row.topic}: {row.ours}", row.other, row.shown, row.wanted, row.how)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def machine() -> str:
    """Return the processor, the number of usable cores, the memory and the system as text."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {cores} cores, {memory:.0f} GB, {platform.system()}"


def versions() -> dict[str, str]:
    """Return the versions of all packages involved; those of peers are the pins of their environments."""
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    for peer, names in PEERS.items():
        found |= {name: pins(peer)[name] for name in names}
    return found
