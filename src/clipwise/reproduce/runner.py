"""Runs experiments by name, writes the files of each as soon as it is done, and the page that shows them all."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path

import clipwise.reproduce
from clipwise.report.files import result_files, write_files
from clipwise.report.sections import Done
from clipwise.reproduce.base import EXPERIMENTS, Experiment, Lab
from clipwise.reproduce.page import page

_LAST = 99  # where those that are in no paper stand


def catalogue() -> list[Experiment]:
    """All experiments of the package, those of the papers first."""
    for module in pkgutil.walk_packages(clipwise.reproduce.__path__, "clipwise.reproduce."):
        importlib.import_module(module.name)
    return sorted(EXPERIMENTS.values(), key=lambda each: each.paper or _LAST)


def choose(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names, or whose names begin so; all, if there is no name."""
    known = catalogue()
    for name in names:
        if not any(each.name.startswith(name) for each in known):
            near = difflib.get_close_matches(name, [each.name for each in known], n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else "clipwise reproduce --list shows all."
            raise ValueError(f"NAME must be an experiment or the beginning of some, got {name!r}; {hint}")
    return [each for each in known if not names or each.name.startswith(tuple(names))]


def reproduce(
    experiments: Sequence[Experiment], lab: Lab, folder: Path, tell: Callable[[Done], object] = lambda done: None
) -> list[Done]:
    """Run the experiments into a folder; whatever stops it, the page shows those that were done."""
    done: list[Done] = []
    try:
        for experiment in experiments:
            result = experiment.make(lab)
            done.append(Done(experiment, result))
            write_files(folder, result_files(experiment, result))
            tell(done[-1])
    finally:
        write_files(folder, {"index.html": page(done, lab.quick).encode()})
    return done
