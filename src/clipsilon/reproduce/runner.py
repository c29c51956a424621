"""Run experiments by name, write the files of each as soon as it is complete, and the page that shows them all."""

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
from clipsilon.report.ownership import check_report_folder
from clipsilon.report.sections import Done
from clipsilon.reproduce.base import EXPERIMENTS, Experiment, Lab
from clipsilon.reproduce.page import page

_EXTRAS = {
    None: (),
    "serve": ("starlette", "uvicorn"),
    "torch": ("torch", "opacus"),
    "language": ("torch", "opacus", "transformers", "sacrebleu", "rouge_score"),
}
_LAST = 99  # position of experiments that are in no paper
_ORDINALS = {"first": "1", "second": "2", "third": "3", "fourth": "4"}


def catalogue() -> list[Experiment]:
    """Return all experiments of the package, in the order of the papers, those that are in no paper last."""
    for module in pkgutil.walk_packages(clipsilon.reproduce.__path__, "clipsilon.reproduce."):
        importlib.import_module(module.name)
    return sorted(EXPERIMENTS.values(), key=_position)


def _position(experiment: Experiment) -> tuple[int, list[tuple[int, str]]]:
    """Return a sort key: the paper, then the words and numbers of the place in it."""
    words = re.findall(r"\d+|[^\W\d]+", experiment.where)
    numbers = [_ORDINALS.get(word, word) for word in words]
    return experiment.paper or _LAST, [(int(word), "") if word.isdigit() else (-1, word) for word in numbers]


def choose(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments whose names begin with one of `names`; without names, all that need no extra."""
    known = catalogue()
    for name in names:
        if not any(each.name.startswith(name) for each in known):
            near = difflib.get_close_matches(name, [each.name for each in known], n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else "clipsilon reproduce --list shows all."
            raise ValueError(f"NAME must be an experiment or a prefix of some, got {name!r}; {hint}")
    return [each for each in known if (each.name.startswith(tuple(names)) if names else each.extra is None)]


def check_extras(experiments: Sequence[Experiment]) -> None:
    """Raise ValueError if an experiment needs a package that is not installed."""
    for experiment in experiments:
        for package in _EXTRAS[experiment.extra]:
            if importlib.util.find_spec(package) is None:
                raise ValueError(needs_package(experiment.name, package, f"clipsilon[{experiment.extra}]"))


def reproduce(
    experiments: Sequence[Experiment], lab: Lab, folder: Path, tell: Callable[[Done], object] = lambda done: None
) -> list[Done]:
    """Run experiments and write their files and the page; if interrupted, the page shows those that are complete.

    Parameters
    ----------
    experiments : sequence of Experiment
        What to run, in this order.
    lab : Lab
        Where the runs are made and stored.
    folder : Path
        Folder of the report; it is created if necessary.
    tell : callable, optional
        Called with each completed experiment.

    Returns
    -------
    list of Done
        The experiments with their results.

    Raises
    ------
    ValueError
        Before anything is computed, if a package is missing, or if the folder holds a page or results that this tool
        did not write.
    """
    check_extras(experiments)
    check_report_folder(folder, [each.name for each in experiments])
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
