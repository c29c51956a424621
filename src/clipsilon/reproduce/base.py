"""The interface of every reproduction: runs in a laboratory, and findings whose verdicts follow from the data.

A module of this package holds one figure or table:

    @experiment("paper1-fig1-first", paper=1, where="Fig. 1, first panel", title="…", parameters={"β": "0.01, 0.05"})
    def first_panel(lab: Lab) -> Result:
        '''What the reader should look for, in a sentence or two: the page prints this.'''
        traces = lab.sweep([...])
        return Result(findings=[...], charts=[...], tables=[...])

It runs at published scale unless `lab.quick`, and draws nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from clipsilon.engine import Trace
from clipsilon.engine.sweep import Run
from clipsilon.report.results import Experiment, Finding, Result

__all__ = ["EXPERIMENTS", "Experiment", "Finding", "Lab", "Result", "experiment"]


class Lab(Protocol):
    """Where experiments are run; every expensive computation goes through it and is stored."""

    @property
    def quick(self) -> bool:
        """Whether to take fewer replicates and steps, for a quick look at the same picture."""

    def sweep(self, runs: Sequence[Run]) -> list[Trace]:
        """Return the traces of all runs, in their order."""

    def keep(self, function: Callable[..., Any], *arguments: object, **keywords: object) -> Any:
        """Return what a function returns; it is called once per set of arguments.

        Parameters
        ----------
        function : callable
            A function at the top level of a module of clipsilon.
        *arguments, **keywords
            Its arguments, which must determine the result.

        Returns
        -------
        object
            What the function returns.
        """


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(
    name: str, paper: int | None, where: str, title: str, parameters: Mapping[str, str], extra: str | None = None
) -> Callable[[Callable[[Lab], Result]], Callable[[Lab], Result]]:
    """Register the decorated function as an experiment.

    Parameters
    ----------
    name : str
        Its name on the command line; no other experiment may have it.
    paper : int or None
        Number of the paper; None for an experiment of our own.
    where : str
        Place in the paper, e.g. "Fig. 1, first panel".
    title : str
        Heading on the page.
    parameters : mapping of str to str
        Symbols and their values, for the reader.
    extra : {"torch", "language", "serve"}, optional
        The optional dependency of the package that it needs.

    Returns
    -------
    callable
        A decorator that returns the function unchanged.

    Raises
    ------
    ValueError
        If the name is taken.
    """

    def register(make: Callable[[Lab], Result]) -> Callable[[Lab], Result]:
        if name in EXPERIMENTS:
            raise ValueError(f"name must be new, got {name!r}.")
        EXPERIMENTS[name] = Experiment(name, paper, where, title, parameters, make, extra)
        return make

    return register
