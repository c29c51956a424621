"""Ours: what each rule achieves at a certified ε with its best setting, and the limit for unbiased rules.

The settings are in frontier_settings.json; `python tools/tune_frontier.py` searches for them, by runs with other random
numbers than those that are shown.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from clipsilon.privacy.calibration import calibrated
from clipsilon.privacy.statement import account
from clipsilon.report.charts import Chart, Series, Table
from clipsilon.reproduce.base import Lab, Result, experiment
from clipsilon.reproduce.numbers import join
from clipsilon.reproduce.ours.frontier_findings import (
    GOALS,
    ONE_PASS,
    SEVERAL,
    Choice,
    Found,
    best_rules,
    choices,
    feedback,
    goals_reached,
    in_one_pass,
    memories,
    over_epochs,
)
from clipsilon.reproduce.ours.frontier_problems import Case, credit_case, imbalanced_case, quadratic_case, skewed_case
from clipsilon.reproduce.ours.frontier_search import ADJACENCY, DELTA, Setting, gaps
from clipsilon.reproduce.problems import stand_in_remark
from clipsilon.rules.presets import DPGD
from clipsilon.rules.schedules import Constant
from clipsilon.theory.limits import far_neighbour, unbiased_limit

SETTINGS = Path(__file__).with_name("frontier_settings.json")
EPSILONS = (8.0, 2.0, 1.0, 0.5)
MOST_EPOCHS = 64
COLOURS = {
    "PCSGD, in order": "#b58900",
    "PCSGD": "#d55e00",
    "DiceSGD": "#0072b2",
    "CorrelatedSGD": "#009e73",
    "TrackedSGD": "#5b4bb7",
    "AdaptiveDPSGD": "#c2669a",
}
PARAMETERS = {
    "ε": f"certified: {join(EPSILONS[::-1])}",
    "δ, adjacency": "10⁻⁵, zero-out",
    "clip, steps, batch, epochs, matrix": "the best for each rule and ε, by runs with other random numbers",
    "released": "the mean of the last half of the iterates",
    "epochs": f"1, or up to {MOST_EPOCHS}",
    "replicates": "100 (quick: 20)",
}
_SEED = 2  # the search used another


def measured(case: Case, name: str, settings: dict[float, Setting], replicates: int) -> list[Found]:
    """Run a rule at each ε.

    Parameters
    ----------
    case : Case
        The problem.
    name : str
        The rule.
    settings : dict of float to Setting
        What was found for each certified ε.
    replicates : int
        The number of runs.

    Returns
    -------
    list of Found
        One per ε.
    """
    return [
        Found(name, epsilon, setting, gaps(case, name, setting, epsilon, replicates, _SEED))
        for epsilon, setting in settings.items()
    ]


def stored_settings(problem: str, passes: str) -> dict[str, dict[float, Setting]]:
    """Return the stored settings of a problem, by rule and ε; empty if there are none."""
    stored = json.loads(SETTINGS.read_text(encoding="utf-8")).get(problem, {}).get(passes, {})
    return {
        name: {float(epsilon): Setting(*numbers) for epsilon, numbers in found.items()}
        for name, found in stored.items()
    }


def limits(case: Case, epsilons: tuple[float, ...]) -> list[float]:
    """Return the smallest gap of an unbiased rule whose certificate is that of one Gaussian, for each ε."""
    records = case.problem.records
    neighbour, rule = far_neighbour(case.problem, ADJACENCY), DPGD(Constant(1.0), 1.0, 1.0)
    found = []
    for epsilon in epsilons:
        noisy = calibrated(rule, epsilon, DELTA, records, 1, adjacency=ADJACENCY)
        statement = account(noisy, records, 1, DELTA, ADJACENCY)
        found.append(unbiased_limit(case.problem, statement, neighbour).gap)
    return found


def frontier(lab: Lab, name: str, case: Case, remark: str = "") -> Result:
    """Measure all rules on one problem, in one pass and with any number of epochs, as far as settings are stored.

    Parameters
    ----------
    lab : Lab
        Where results are kept.
    name : str
        The problem's name among the settings.
    case : Case
        The problem.
    remark : str, default ""
        A remark on the data.

    Returns
    -------
    Result
        Findings, charts and tables: of one pass, and of any number of epochs if settings are stored.
    """
    replicates, epsilons = 20 if lab.quick else 100, EPSILONS

    def run_all(passes: str, rules: tuple[str, ...]) -> list[Found]:
        settings = stored_settings(name, passes)
        known = [rule for rule in rules if rule in settings]
        return [one for rule in known for one in lab.keep(measured, case, rule, settings[rule], replicates)]

    once, several = run_all("one pass", ONE_PASS), run_all("any epochs", SEVERAL)
    (quiet,) = run_all("no noise", ONE_PASS[:1])
    floor = Series(
        "limit of unbiased rules", epsilons, lab.keep(limits, case, epsilons), kind="dashed", colour="#636363"
    )
    start = Series(
        "not training",
        _ends(epsilons),
        [float(np.sum((case.start - case.goal) ** 2))] * 2,
        kind="dashed",
        colour="#969696",
    )
    noiseless = Series("without noise", _ends(epsilons), [quiet.mean] * 2, kind="dashed", colour="#7f7f7f")
    charts = [_chart("One pass over the records", [*_lines(once), noiseless, floor, start])]
    tables = [_table(charts[0].title, [*once, quiet])]
    findings = [in_one_pass(once, quiet)]
    if several:  # such settings take long to find, so a problem may be without those of some rules
        chosen = choices([*once, *several])
        charts.append(_chart("Any number of epochs", [*_lines(several), floor, start]))
        tables += [_table(charts[1].title, several), _comparison(chosen)]
        if {"DiceSGD", "TrackedSGD"} <= {one.name for one in several}:
            findings += [feedback(several), memories(several)]
        findings.append(over_epochs(chosen))
    if name in GOALS:
        findings.append(goals_reached(GOALS[name], [*once, quiet], several))
    findings.append(best_rules(once, several, start, floor))
    findings = [finding._replace(remark=" ".join([finding.remark, remark]).strip()) for finding in findings]
    return Result(findings, charts, tables)


def _ends(epsilons: tuple[float, ...]) -> list[float]:
    return [min(epsilons), max(epsilons)]


def _lines(found: list[Found]) -> list[Series]:
    names = dict.fromkeys(one.name for one in found)
    return [_line(sorted((one for one in found if one.name == name), key=lambda one: one.epsilon)) for name in names]


def _line(found: list[Found]) -> Series:
    means, errors = (np.array([getattr(one, key) for one in found]) for key in ("mean", "error"))
    low, high = np.maximum(means - 2 * errors, 0.3 * means), means + 2 * errors
    name = found[0].name
    return Series(name, [one.epsilon for one in found], means, low, high, colour=COLOURS[name])


def _chart(title: str, series: list[Series]) -> Chart:
    return Chart(title, "certified ε", "‖θ − θ_PS‖²", series, x_log=True, y_log=True)


def _table(title: str, found: list[Found]) -> Table:
    columns = ("rule", "certified ε", "gap", "standard error", "clip", "mean step", "batch", "epochs", "decay of steps")
    rows = [
        (
            *(one.name, one.epsilon if np.isfinite(one.epsilon) else "no noise", one.mean, one.error),
            *(*one.setting[:4], one.setting.decay),
        )
        for one in sorted(found, key=lambda one: (one.epsilon, one.mean))
    ]
    return Table(title, columns, rows)


def _comparison(chosen: list[Choice]) -> Table:
    """Return the best plain clipping beside its rivals, each with its best number of epochs."""
    ways = ("plain clipping", *(one.name for one in chosen[0].rivals))
    columns = ("certified ε", *(f"{way}{what}" for way in ways for what in ("", ", standard error", ", epochs")))
    rows = [
        (choice.epsilon, *(cell for one in (choice.plain, *choice.rivals) for cell in _gap_and_epochs(one)))
        for choice in chosen
    ]
    return Table("Each with its best number of epochs", columns, rows)


def _gap_and_epochs(one: Found) -> tuple[float, float, int]:
    return one.mean, one.error, one.setting.epochs


@experiment(
    "ours-frontier-quadratic",
    paper=None,
    where="frontier at certified ε, quadratic problem",
    title="Accuracy at a certified ε: the quadratic problem",
    parameters={**PARAMETERS, "problem": "paper 1, first problem, β = 0.05, m = 10⁵"},
)
def quadratic_frontier(lab: Lab) -> Result:
    """Each rule with its best setting, and the noise that certifies the ε on the axis. The dashed line that falls is
    the limit of rules without bias: clipping may pass it, because it has one.
    """
    return frontier(lab, "quadratic", quadratic_case())


@experiment(
    "ours-frontier-credit",
    paper=None,
    where="frontier at certified ε, credit data",
    title="Accuracy at a certified ε: credit data",
    parameters={**PARAMETERS, "problem": "paper 1, credit, β = 0.1"},
)
def credit_frontier(lab: Lab) -> Result:
    """The same on credit data, where a few records have gradients a hundred times as long as most: one of them alone
    moves the stable point so far that no unbiased rule is better than not training unless ε is large.
    """
    return frontier(lab, "credit", credit_case(), stand_in_remark())


@experiment(
    "ours-frontier-imbalanced",
    paper=None,
    where="frontier at certified ε, few labels of one kind",
    title="Accuracy at a certified ε: few labels of one kind",
    parameters={
        **PARAMETERS,
        "problem": "logistic, m = 50,000, d = 21 with a constant, five columns log-normal, 7.6 % of labels one, "
        "l2 = 10⁻³, best response with β = 0.1",
    },
)
def imbalanced_frontier(lab: Lab) -> Result:
    """The same where one label in thirteen is one: the gradient is flat in the direction that sets their number, so
    that a run has far to go and noise accumulates.
    """
    return frontier(lab, "imbalanced", imbalanced_case())


@experiment(
    "ours-frontier-skewed",
    paper=None,
    where="frontier at certified ε, skewed targets",
    title="Accuracy at a certified ε: skewed targets",
    parameters={
        **PARAMETERS,
        "problem": "least squares, m = 100,000, d = 11 with a constant, errors of Lomax's law with exponent 2.5, "
        "targets that move by 0.3 of their prediction",
    },
)
def skewed_frontier(lab: Lab) -> Result:
    """The same where errors have a long tail on one side: clipping cuts off that side, and so moves the constant."""
    return frontier(lab, "skewed", skewed_case())
