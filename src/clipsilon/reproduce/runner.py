"""Runs experiments by name, writes the files of each as soon as it is done, and the page that shows them all."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import clipsilon.reproduce
from clipsilon._core.extras import needs_package
from clipsilon.report.files import result_files, write_files
from clipsilon.report.sections import Done
from clipsilon.reproduce.base import EXPERIMENTS, Experiment, Lab
from clipsilon.reproduce.page import page

_EXTRAS = {
    None: (),
    "torch": ("torch", "opacus"),
    "language": ("torch", "opacus", "transformers", "sacrebleu", "rouge_score"),
}
_LAST = 99  # where those that are in no paper stand
_ORDINALS = {"first": "1", "second": "2", "third": "3", "fourth": "4"}


def catalogue() -> list[Experiment]:
    """All experiments of the package, as the papers have them, and then those that are in none."""
    for module in pkgutil.walk_packages(clipsilon.reproduce.__path__, "clipsilon.reproduce."):
        importlib.import_module(module.name)
    return sorted(EXPERIMENTS.values(), key=_place)


def _place(experiment: Experiment) -> tuple[int, list[tuple[int, str]]]:
    """Where it stands: the paper, then words and numbers in their order."""
    words = re.findall(r"\d+|[^\W\d]+", experiment.where)
    numbers = [_ORDINALS.get(word, word) for word in words]
    return experiment.paper or _LAST, [(int(word), "") if word.isdigit() else (-1, word) for word in numbers]


def choose(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names, or whose names begin so; if there is no name, all that need no extra."""
    known = catalogue()
    for name in names:
        if not any(each.name.startswith(name) for each in known):
            near = difflib.get_close_matches(name, [each.name for each in known], n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else "clipsilon reproduce --list shows all."
            raise ValueError(f"NAME must be an experiment or the beginning of some, got {name!r}; {hint}")
    return [each for each in known if (each.name.startswith(tuple(names)) if names else each.extra is None)]


def check_extras(experiments: Sequence[Experiment]) -> None:
    """Refuse experiments whose packages are not installed, before any is run."""
    for experiment in experiments:
        for package in _EXTRAS[experiment.extra]:
            if importlib.util.find_spec(package) is None:
                raise ValueError(needs_package(experiment.name, package, f"clipsilon[{experiment.extra}]"))


def reproduce(
    experiments: Sequence[Experiment], lab: Lab, folder: Path, tell: Callable[[Done], object] = lambda done: None
) -> list[Done]:
    """Run the experiments into a folder; whatever stops it, the page shows those that were done."""
    check_extras(experiments)
    done: list[Done] = []
    try:
        for experiment in experiments:
            result = experiment.make(lab)
            done.append(Done(experiment, result))
            write_files(folder, result_files(experiment, result, lab.quick))
            tell(done[-1])
    finally:
        if done:
            write_files(folder, {"index.html": page(done, lab.quick).encode()})
    return done
