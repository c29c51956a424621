"""What a report consists of: experiments, their findings, and the verdict on each statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from clipsilon.report.charts import Chart, Table

VERDICTS = ("holds", "holds with a remark", "does not hold")


class Finding(NamedTuple):
    """One statement, what was measured, and whether the statement holds.

    Parameters
    ----------
    statement : str
        The statement of a paper, in our words, as one sentence.
    measured : str
        The numbers that decide it.
    holds : bool
        Whether the statement holds; always computed from the measurements, never hard-coded.
    remark : str, default ""
        What the reader must know besides: an erratum, a condition, a different scale.
    """

    statement: str
    measured: str
    holds: bool
    remark: str = ""

    @property
    def verdict(self) -> str:
        """Return one of `VERDICTS`."""
        if not self.holds:
            return VERDICTS[2]
        return VERDICTS[1] if self.remark else VERDICTS[0]


class Result(NamedTuple):
    """The findings of an experiment, with its charts and tables.

    Parameters
    ----------
    findings : sequence of Finding
        At least one statement with its verdict.
    charts : sequence of Chart, default ()
        In the order in which the page shows them.
    tables : sequence of Table, default ()
        In the order in which the page shows them.
    """

    findings: Sequence[Finding]
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()

    @property
    def verdict(self) -> str:
        """Return the worst verdict of the findings."""
        return max((finding.verdict for finding in self.findings), key=VERDICTS.index)


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper, or an experiment of our own.

    Parameters
    ----------
    name : str
        What the command line calls it, e.g. "paper1-fig1-first".
    paper : int or None
        Number of the paper; None for an experiment of our own.
    where : str
        Place in the paper, e.g. "Fig. 1, first panel".
    title : str
        Heading on the page.
    parameters : mapping of str to str
        Symbols and their values, for the reader.
    make : callable
        Runs the experiment in a laboratory and returns its `Result`.
    extra : {"torch", "language", "serve"}, optional
        The optional dependency of the package that it needs.
    """

    name: str
    paper: int | None
    where: str
    title: str
    parameters: Mapping[str, str]
    make: Callable[[Any], Result]
    extra: str | None = None

    @property
    def story(self) -> str:
        """Return what to look for: the docstring of `make`."""
        return " ".join((self.make.__doc__ or "").split())
