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
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from clipwise.engine import Trace
from clipwise.report.charts import Chart, Table
from clipwise.sweep import Run

VERDICTS = ("holds", "holds with a remark", "does not hold")


class Finding(NamedTuple):
    """One statement of a paper beside what was measured; `holds` is computed, never written by hand."""

    says: str  #: the paper's statement, in our words
    measured: str  #: the numbers that decide it
    holds: bool
    remark: str = ""  #: what a reader must know besides: an erratum, a condition, another scale

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if not self.holds:
            return VERDICTS[2]
        return VERDICTS[1] if self.remark else VERDICTS[0]


class Result(NamedTuple):
    """What an experiment found."""

    findings: Sequence[Finding]
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()

    @property
    def verdict(self) -> str:
        """The worst verdict of its findings."""
        return max((finding.verdict for finding in self.findings), key=VERDICTS.index)


class Lab(Protocol):
    """Where experiments are run; everything that takes time goes through it, and is kept."""

    @property
    def quick(self) -> bool:
        """For a look: the same picture with fewer replicates and steps."""

    def sweep(self, runs: Sequence[Run]) -> list[Trace]:
        """The traces of all runs, in their order."""

    def keep(self, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        """What the function returns; computed once for each set of arguments, which decide the result."""


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper, or one of ours (`paper` None)."""

    name: str
    paper: int | None
    where: str  #: "Fig. 1, first panel"
    title: str
    parameters: Mapping[str, str]  #: for the reader: symbol and value
    make: Callable[[Lab], Result]
    extra: str | None = None  #: of the package that it needs: "torch" or "language"

    @property
    def story(self) -> str:
        """What to look for."""
        return " ".join((self.make.__doc__ or "").split())


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
