"""What every reproduction is: the paper's statement, a grid of runs, what was measured, and a verdict from the data.

A module of this package holds one figure or table:

    @experiment("paper1-fig1-first", paper=1, where="Fig. 1, first panel", title="…", parameters={"β": "0.01, 0.05"})
    def first_panel(lab: Lab) -> Result:
        '''What the reader should look for, in a sentence or two: the page prints this.'''
        traces = lab.sweep([...])
        return Result(findings=[...], charts=[...], tables=[...])

It takes published scale unless `lab.quick`, and draws nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from clipsilon.engine import Trace
from clipsilon.engine.sweep import Run
from clipsilon.report.results import Experiment, Finding, Result

__all__ = ["EXPERIMENTS", "Experiment", "Finding", "Lab", "Result", "experiment"]


class Lab(Protocol):
    """Where experiments are run; everything that takes time goes through it, and is kept."""

    @property
    def quick(self) -> bool:
        """For a look: the same picture with fewer replicates and steps."""

    def sweep(self, runs: Sequence[Run]) -> list[Trace]:
        """The traces of all runs, in their order."""

    def keep(self, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        """What the function returns; computed once for each set of arguments, which decide the result."""


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(
    name: str, paper: int | None, where: str, title: str, parameters: Mapping[str, str], extra: str | None = None
) -> Callable[[Callable[[Lab], Result]], Callable[[Lab], Result]]:
    """Register a function as the experiment of that name."""

    def register(make: Callable[[Lab], Result]) -> Callable[[Lab], Result]:
        if name in EXPERIMENTS:
            raise ValueError(f"name must be new, got {name!r}.")
        EXPERIMENTS[name] = Experiment(name, paper, where, title, parameters, make, extra)
        return make

    return register
