"""What benchmarks find: rows of ratios, kept in a file a part (`benchmarks/results/`) for the page that joins them."""

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
PEERS = {"jax": ("jax",), "jax-privacy": ("jax-privacy",), "diffprivlib": ("diffprivlib",)}


class Row(NamedTuple):
    """One comparison. Against a peer, above 1 means that clipsilon is ahead; a cost is ours over what it stands on."""

    kind: str  # "peer" or "cost"
    topic: str
    ours: str
    other: str
    ratio: float | None  # None: there is none, and `how` says why
    how: str  # how it was measured, or why it was not
    least: float | None = None
    most: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the limits are kept; what was not run breaks none."""
        return self.ratio is None or (self.least or 0.0) <= self.ratio <= (self.most or math.inf)

    @property
    def wanted(self) -> str:
        """The limits in words."""
        limits = [f"≥ {self.least:.3g}"] if self.least is not None else []
        return ", ".join(limits + ([f"≤ {self.most:.3g}"] if self.most is not None else []))

    @property
    def shown(self) -> str:
        """The ratio to three digits, or to four where three would hide who is ahead."""
        if self.ratio is None:
            return "–"
        if self.ratio >= 100:
            return f"{self.ratio:,.0f}"
        return f"{self.ratio:#.{3 if abs(self.ratio - 1) >= 0.005 else 4}g}"


def ahead(topic: str, ours: str, other: str, ratio: float, how: str, least: float | None = None) -> Row:
    """A row against a peer."""
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
    """A row of clipsilon over something of its own."""
    return Row("cost", topic, ours, other, _checked(ratio), how, least, most)


def _checked(ratio: float) -> float:
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError(f"ratio must be finite and positive, got {ratio}.")
    return float(ratio)


@contextmanager
def unless_missing(rows: list[Row], topic: str, ours: str, peer: str) -> Iterator[None]:
    """Go on without a peer that cannot be installed or that fails, and say so in a row."""
    try:
        yield
    except PeerError as error:
        print(f"{peer}: {error}", file=sys.stderr)
        rows.append(Row("peer", topic, ours, peer, None, f"not run: {error}"))


def main(part: str, measure: Callable[[list[Row], bool], None], about: str) -> int:
    """Measure one part, print its rows and keep them; 1 if something was not run or a limit is not kept."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and few turns: to see that it works")
    quick = parser.parse_args().quick
    return keep(part, lambda rows: measure(rows, quick), quick)


def keep(part: str, measure: Callable[[list[Row]], None], quick: bool = False) -> int:
    """Measure, and write what was found even if it is interrupted."""
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
    """Keep the rows of one part, with when and where they were measured."""
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
    """Where the rows of a part are kept; those of quick runs apart, as they are not for the page."""
    return (RESULTS / "quick" if quick else RESULTS) / f"{part}.json"


def read(path: Path) -> dict[str, Any]:
    """What `write` kept."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {**found, "rows": [Row(**row) for row in found["rows"]]}


def show(part: str, rows: list[Row]) -> None:
    """Print the rows."""
    table = Table("clipsilon", "against", "ratio", "wanted", "how", title=part)
    for row in rows:
        table.add_row(f"{row.topic}: {row.ours}", row.other, row.shown, row.wanted, row.how)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def machine() -> str:
    """The processor, the cores that may be used, and memory."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {cores} cores, {memory:.0f} GB, {platform.system()}"


def versions() -> dict[str, str]:
    """Versions of all that takes part; those of peers are what their environments are made from."""
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    for peer, names in PEERS.items():
        found |= {name: pins(peer)[name] for name in names}
    return found
