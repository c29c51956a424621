"""Measure what a user waits for: import, help, the first fit, the demo and the tests, in seconds of CPU time.

Run it on a quiet machine: python tools/start_times.py [import help fit again demo tests ...]. Without arguments it
measures all but the tests, which take as long as `make test`. CPU time includes all processes that a command starts.
Each measurement but `import`, `help` and `again` has an empty cache folder. Exits with 1 if a limit is exceeded.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FIT = """
import numpy as np
from clipsilon.estimators import PrivateLogisticRegression
rng = np.random.default_rng(0)
X = rng.normal(size=(20_000, 5))
y = X[:, 0] + rng.normal(size=20_000) > 0
PrivateLogisticRegression(epsilon=1.0, delta=1e-5, classes=[False, True]).fit(X, y)
"""
COMMAND = "from clipsilon.cli.main import main; main()"


class Measurement(NamedTuple):
    """What is run, the most it may take in seconds of CPU time, and whether it is run once before."""

    arguments: list[str]
    limit: float
    is_warm: bool = False


MEASUREMENTS = {
    "import": Measurement(["-c", "import clipsilon"], 0.8, is_warm=True),
    "help": Measurement(["-c", COMMAND, "--help"], 0.4, is_warm=True),
    "fit": Measurement(["-c", FIT], 8.0),
    "again": Measurement(["-c", FIT], 3.0, is_warm=True),
    "demo": Measurement(["-c", COMMAND, "demo", "--quiet"], 60.0),
    "tests": Measurement(["-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", str(ROOT)], 900.0),
}


def measure(measurement: Measurement) -> tuple[float, float]:
    """Return the seconds of CPU time and of the clock that a command takes, with a cache of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CLIPSILON_CACHE": str(Path(folder) / "cache")}
        call = [sys.executable, *measurement.arguments]
        if measurement.is_warm:
            subprocess.run(call, env=environment, cwd=folder, check=True, capture_output=True)
        begun, before = time.perf_counter(), _children()
        subprocess.run(call, env=environment, cwd=folder, check=True, capture_output=True)
        return _children() - before, time.perf_counter() - begun


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Print a line per measurement, and return the exit code."""
    wanted = sys.argv[1:] or [name for name in MEASUREMENTS if name != "tests"]
    slow = []
    print(f"{'':8} {'CPU':>8} {'clock':>8} {'limit':>8}  seconds; limits are for the CPU time")
    for name in wanted:
        cpu, clock = measure(MEASUREMENTS[name])
        print(f"{name:8} {cpu:8.2f} {clock:8.2f} {MEASUREMENTS[name].limit:8.1f}", flush=True)
        slow += [name] if cpu > MEASUREMENTS[name].limit else []
    print(f"above the limit: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
