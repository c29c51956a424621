"""Run the benchmarks against peers and write their results to docs/peers.md.

    python benchmarks/table.py                  all parts, then the page
    python benchmarks/table.py engine audit     only these parts; the rows of the others stay as measured earlier
    python benchmarks/table.py --join           no measurement, only the page
    python benchmarks/table.py --quick          small sizes, to check that everything works; no page

Each part is a script that runs in its own process and stores its rows in benchmarks/results/. The page joins the rows
that were measured on this machine with these versions. The exit status is 0 if all parts finished within their
limits, else 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from results import Row, file, machine, read, versions

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "peers.md"
# Parts in the order of the page, with their names there.
PARTS = {
    "engine": "Engine",
    "correlated": "Correlated noise",
    "glm": "Estimators, speed",
    "quality": "Estimators, quality",
    "mixed_tables": "Tables",
    "ghost": "PyTorch",
    "adaptive": "Adaptive clip",
    "accounting": "Accounting",
    "audit": "Audits",
    "local": "Local privacy",
    "live": "Live learning",
    "local_service": "Local service",
    "clusters": "Dask",
}
BEGIN, END = "<!-- table: begin (written by benchmarks/table.py) -->", "<!-- table: end -->"


def main() -> int:
    """Run the parts, write the page, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one or more of {', '.join(PARTS)}; default: all")
    parser.add_argument("--join", action="store_true", help="measure nothing; only write the page")
    parser.add_argument("--quick", action="store_true", help="small sizes and few turns")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.parts) - set(PARTS))
    if unknown:
        parser.error(f"part must be one of {', '.join(PARTS)}, got {unknown[0]}.")
    parts = [] if chosen.join else chosen.parts or list(PARTS)
    ended = run(parts, chosen.quick)
    if chosen.quick:
        return 0 if ended else 1
    found = {part: kept(part) for part in PARTS}
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), page(found)), encoding="utf-8")
    problems = [problem for part, what in found.items() for problem in problems_of(part, what)]
    print("\n".join([f"{PAGE.relative_to(HERE.parent)} is written.", *problems]))
    return 1 if problems else 0


def run(parts: list[str], quick: bool) -> bool:
    """Run parts one after the other until Ctrl-C, and return whether all of them succeeded."""
    good = True
    for part in parts:
        print(f"== {part}", flush=True)
        file(part, quick).unlink(missing_ok=True)  # otherwise a failure would leave the rows of an earlier run
        process = subprocess.Popen([sys.executable, str(HERE / f"{part}.py"), *options(part, quick)])
        try:
            good &= process.wait() == 0
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C reached it, too, and it stores what it has measured
            return False
    return good


def options(part: str, quick: bool) -> list[str]:
    """Return the command-line options of a part's script."""
    return (["--bench"] if part == "quality" else []) + (["--quick"] if quick else [])


def kept(part: str) -> dict[str, Any] | str:
    """Return the stored results of a part, or why they are not on the page."""
    if not file(part).exists():
        return "not run"
    found = read(file(part))
    if (found["machine"], found["versions"]) != (machine(), versions()):
        return f"not run here: last measured on {found['date']} on another machine or with other versions"
    return found


def problems_of(part: str, found: dict[str, Any] | str) -> list[str]:
    """Return the reasons for which a part makes the exit status 1."""
    if isinstance(found, str):
        return [f"{part}: {found}"]
    problems = [] if found["finished"] else [f"{part}: not finished"]
    problems += [f"{part}: {row.other}: {row.how}" for row in found["rows"] if row.ratio is None]
    return problems + [
        f"{part}: {row.ours} / {row.other}: {row.shown}, wanted {row.wanted}" for row in found["rows"] if not row.kept
    ]


def page(found: dict[str, dict[str, Any] | str]) -> str:
    """Return the text between the marks: machine and dates, the table of peers, and the table of costs."""
    named = ", ".join(f"{name} {version}" for name, version in versions().items())
    latest = max((what["date"] for what in found.values() if not isinstance(what, str)), default="–")
    minutes = "; ".join(f"{PARTS[part]}: {_when(what, latest)}" for part, what in found.items())
    rows = [row for what in found.values() if not isinstance(what, str) for row in what["rows"]]
    return "\n".join(
        [
            f"Measured on: {machine()}. Versions: {named}. Minutes per part, on {latest} unless dated: {minutes}.",
            "",
            "| clipsilon | peer | ratio (wanted) | how measured |",
            "|---|---|---|---|",
            *_lines([row for row in rows if row.kind == "peer"]),
            "",
            "What clipsilon's own parts cost, in the same runs: time or memory of the first over the second.",
            "",
            "| first | second | ratio (wanted) | how measured |",
            "|---|---|---|---|",
            *_lines([row for row in rows if row.kind == "cost"]),
        ]
    )


def _when(found: dict[str, Any] | str, latest: str) -> str:
    """Return the minutes that a part took, with its date if that is not the latest, or why it is not on the page."""
    if isinstance(found, str):
        return found
    date = "" if found["date"] == latest else f", {found['date']}"
    return f"{found['minutes']:g}{date}" + ("" if found["finished"] else ", not finished")


def _lines(rows: list[Row]) -> list[str]:
    """Return the rows of a table; cells that repeat the row above are empty."""
    lines = []
    above = ("", "", "", "")
    for row in rows:
        cells = (row.topic, row.ours, row.other, row.how)
        topic, ours, other, how = ("" if cell == last else cell for cell, last in zip(cells, above, strict=True))
        first = f"**{topic}**: {row.ours}" if topic else ours
        wanted = row.wanted if row.kept else f"{row.wanted}: missed"
        shown = f"{row.shown} ({wanted})" if wanted else row.shown
        lines.append(f"| {first} | {other} | {shown} | {how} |")
        above = cells
    return lines


def replaced(text: str, table: str) -> str:
    """Return the text with another table between the marks."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the page must have one {BEGIN}, followed by one {END}.")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    sys.exit(main())
