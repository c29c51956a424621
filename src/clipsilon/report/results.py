"""What a report is made of: an experiment, what it found, and the verdict on each statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from clipsilon.report.charts import Chart, Table

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


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper, or one of ours (`paper` None)."""

    name: str
    paper: int | None
    where: str  #: "Fig. 1, first panel"
    title: str
    parameters: Mapping[str, str]  #: for the reader: symbol and value
    make: Callable[[Any], Result]  #: from a laboratory, in which it is run
    extra: str | None = None  #: of the package that it needs: "torch" or "language"

    @property
    def story(self) -> str:
        """What to look for."""
        return " ".join((self.make.__doc__ or "").split())
