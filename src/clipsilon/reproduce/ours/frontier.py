"""Ours: what each rule achieves at a certified ε, with the best thresholds and steps for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clipsilon.analysis.fixed_points import stable_point
from clipsilon.engine.sweep import Run
from clipsilon.privacy.calibration import calibrated
from clipsilon.problems import responses
from clipsilon.problems.losses import MallowsLogistic
from clipsilon.problems.problem import Problem
from clipsilon.report.charts import Array, Chart, Series, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.numbers import join
from clipsilon.reproduce.problems import credit_data, credit_problem, quadratic, stand_in_remark
from clipsilon.rules import schedules as steps
from clipsilon.rules.noise import Local
from clipsilon.rules.presets import LDPSGD
from clipsilon.rules.rule import Rule
from clipsilon.theory.tuning.gap import best, options, thresholds
from clipsilon.theory.tuning.task import task_of

EPSILONS, QUICK_EPSILONS = (0.3, 1.0, 3.0, 10.0), (1.0, 10.0)
SINGLE = 100_000  # steps with one record each
MINIBATCH = 2000  # steps with batches
PARAMETERS = {
    "ε": f"certified: {join(EPSILONS)} (quick: {join(QUICK_EPSILONS)})",
    "δ, adjacency": "1/m, replace-one",
    "thresholds, steps": "the best by the forecast of `clipsilon.tune`, which reads the data without noise",
    "T": "10⁵ with one record per step, 2000 with batches",
    "replicates": "100 (quick: 20)",
}
ALONE = {"PCSGD": "PCSGD", "DiceSGD": "DiceSGD"}
BATCHED = {"PCSGD": "DPSGD, batches", "DiceSGD": "DiceSGD, batches"}
COLOURS = {
    "PCSGD": "#d55e00",
    "DPSGD, batches": "#b58900",
    "DiceSGD": "#0072b2",
    "DiceSGD, batches": "#5b4bb7",
    "LDP-SGD": "#009e73",
}


class Case(NamedTuple):
    """A problem and how it is run.

    Parameters
    ----------
    problem : Problem
        The problem.
    start : float
        Every entry of θ at the start.
    batch : int
        Expected size of the batches.
    tuned_on : Problem
        The same problem, possibly with fewer records, on which the rules are tuned.
    """

    problem: Problem
    start: float
    batch: int
    tuned_on: Problem


class Found(NamedTuple):
    """A rule that was tuned and run.

    Parameters
    ----------
    name : str
        Entry in the legend.
    epsilon : float
        The certified ε.
    rule : Rule
        The tuned rule.
    ratio : ndarray of shape (replicates,)
        Final gap divided by the initial gap.
    """

    name: str
    epsilon: float
    rule: Rule
    ratio: Array


def quadratic_case() -> Case:
    """Return paper 1's first problem with β = 0.05, tuned on a hundredth of its records, a tenth of them ones."""
    problem = quadratic(0.05)
    thinned = np.sort(problem.features[:, 0])[50::100]
    return Case(problem, 5.0, 500, problem.on(thinned))


def credit_case() -> Case:
    """Return paper 1's credit problem with β = 0.1, tuned on all records, since parts have distant stable points."""
    problem = credit_problem(0.1)
    return Case(problem, 0.0, 200, problem)


def tuned(case: Case, epsilons: tuple[float, ...], batch: int, run_steps: int, every: int) -> list[list[Rule]]:
    """Return the best PCSGD and the best capped DiceSGD for each certified ε, as `clipsilon.tune` without refinement.

    Parameters
    ----------
    case : Case
        The problem.
    epsilons : tuple of float
        Certified ε at δ = 1/m.
    batch, run_steps : int
        Expected batch size and number of steps.
    every : int
        Every `every`-th threshold is tried, from the largest down.

    Returns
    -------
    list of list of Rule
        Both rules, for each ε.
    """
    m = case.problem.records
    about = (1 / m, run_steps, None, batch, case.start, "replace-one")
    tasks = [task_of(case.problem, epsilon, *about)._replace(problem=case.tuned_on) for epsilon in epsilons]
    tried = [options(tasks, reach) for reach in thresholds(tasks[0])[::-every]]
    rules = []
    for k, epsilon in enumerate(epsilons):
        least = best([option for found in tried for option in found[k]])
        rules.append([calibrated(option.rule, epsilon, 1 / m, m, run_steps) for option in least])
    return rules


def candidates(lab: Lab, case: Case) -> list[tuple[float, str, Rule, int]]:
    """Return ε, name, rule and number of steps of all runs."""
    epsilons = QUICK_EPSILONS if lab.quick else EPSILONS
    found = []
    for batch, run_steps, names in ((1, SINGLE, ALONE), (case.batch, MINIBATCH, BATCHED)):
        chosen = lab.keep(tuned, case, epsilons, batch, run_steps, 2 if lab.quick else 1)
        for epsilon, rules in zip(epsilons, chosen, strict=True):
            found += [(epsilon, names[rule.name], rule, run_steps) for rule in rules]
    return found


def measured(lab: Lab, case: Case) -> list[Found]:
    """Run all tuned rules at every ε, with random numbers that the tuning did not use."""
    plans = candidates(lab, case)
    many = 20 if lab.quick else 100
    traces = lab.sweep([Run(case.problem, rule, count, case.start, many, record=2) for _, _, rule, count in plans])
    goal = lab.keep(stable_point, case.problem).theta
    far = float(np.sum((case.start - goal) ** 2))
    return [
        Found(name, epsilon, rule, trace.gap(goal)[:, -1] / far)
        for (epsilon, name, rule, _), trace in zip(plans, traces, strict=True)
    ]


def local(lab: Lab) -> list[Found]:
    """Run LDP-SGD for one pass with the best of several steps; its loss has bounded gradients and its own θ_PS."""
    train = credit_data().train
    problem = Problem(train.features, train.labels, loss=MallowsLogistic(), response=responses.BestResponse(0.1))
    goal = lab.keep(stable_point, problem).theta
    plans = {epsilon: _local_rules(problem, epsilon) for epsilon in (QUICK_EPSILONS if lab.quick else EPSILONS)}
    trials = [Run(problem, rule, problem.records, 0.0, 20, 1, 2) for rules in plans.values() for rule in rules]
    ends = np.reshape([trace.gap(goal)[:, -1].mean() for trace in lab.sweep(trials)], (len(plans), -1))
    chosen = [rules[k] for rules, k in zip(plans.values(), ends.argmin(axis=1), strict=True)]
    many = 20 if lab.quick else 100
    traces = lab.sweep([Run(problem, rule, problem.records, 0.0, many, record=2) for rule in chosen])
    return [
        Found("LDP-SGD", epsilon, rule, trace.gap(goal)[:, -1] / float(goal @ goal))
        for epsilon, rule, trace in zip(plans, chosen, traces, strict=True)
    ]


def _local_rules(problem: Problem, epsilon: float) -> list[Rule]:
    """Return rules with the largest budget for ε, and with steps from small to large."""
    blank, m = LDPSGD(steps.Power(1.0, 0.6), budget=1.0), problem.records
    noise = calibrated(blank, epsilon, 1 / m, m, m).noise
    assert isinstance(noise, Local)
    return [LDPSGD(steps.Power(float(first), 0.6), noise.budgets) for first in np.geomspace(0.003, 1.0, 6)]


@experiment(
    "ours-frontier-quadratic",
    paper=None,
    where="frontier at certified ε, quadratic problem",
    title="Accuracy at a certified ε: the quadratic problem",
    parameters={**PARAMETERS, "problem": "paper 1, first problem, β = 0.05, m = 10⁵", "B": "500"},
)
def quadratic_frontier(lab: Lab) -> Result:
    """Each rule with its best thresholds and steps, and the noise that certifies the ε on the axis. The noise that
    feedback needs for a certified guarantee outweighs the bias that it removes, unless ε is large. (LDP-SGD needs a
    loss with bounded gradients and does not apply.)
    """
    return _result(measured(lab, quadratic_case()), "")


@experiment(
    "ours-frontier-credit",
    paper=None,
    where="frontier at certified ε, credit data",
    title="Accuracy at a certified ε: credit data",
    parameters={**PARAMETERS, "problem": "paper 1, credit, β = 0.1", "B": "200"},
)
def credit_frontier(lab: Lab) -> Result:
    """The same on credit data, with local privacy for comparison: there, nobody has to trust the learner, each record
    is used once, and its own noise protects it. (Its loss is a different one, which bounds gradients by weights; the
    gap is to the stable point of that loss.)
    """
    return _result([*measured(lab, credit_case()), *local(lab)], stand_in_remark())


def _result(found: list[Found], remark: str) -> Result:
    means = {(one.name, one.epsilon): float(one.ratio.mean()) for one in found}
    findings = [_feedback(found, remark), _batches(means, remark), _worth(means, remark)]
    names = list(dict.fromkeys(one.name for one in found))
    series = [_series([one for one in found if one.name == name]) for name in names]
    axes = ("certified ε", "‖θ_T − θ_PS‖²/‖θ_0 − θ_PS‖²")
    chart = Chart("Final gap relative to the initial gap", *axes, [*series, _start(found)], x_log=True, y_log=True)
    return Result(findings, [chart], [_table(found)])


def _feedback(found: list[Found], remark: str) -> Finding:
    """Test whether DiceSGD is better than PCSGD at every ε, by at least two standard errors."""
    each = {(one.name, one.epsilon): one.ratio for one in found}
    epsilons = sorted({one.epsilon for one in found})
    pairs = [(each["DiceSGD", epsilon], each["PCSGD", epsilon]) for epsilon in epsilons]
    ratios = [dice.mean() / plain.mean() for dice, plain in pairs]
    better = [epsilon for epsilon, pair in zip(epsilons, pairs, strict=True) if _clearly_less(*pair)]
    where = f"It is clearly better at ε = {join(better)}." if better else "It is clearly better at none of them."
    return Finding(
        "Error feedback is the better choice at the same privacy (papers 1 and 3).",
        f"The gap of DiceSGD is {join(ratios)} times the gap of PCSGD at certified ε = {join(epsilons)}. {where}",
        len(better) == len(epsilons),
        f"The papers compare at a claimed ε that does not hold (erratum 1). {remark}".strip(),
    )


def _clearly_less(first: Array, second: Array) -> bool:
    error = np.hypot(first.std() / np.sqrt(first.size), second.std() / np.sqrt(second.size))
    return bool(first.mean() + 2 * error < second.mean())


def _batches(means: dict[tuple[str, float], float], remark: str) -> Finding:
    epsilons = sorted({epsilon for _, epsilon in means})
    ratios = [means["PCSGD", epsilon] / means["DPSGD, batches", epsilon] for epsilon in epsilons]
    return Finding(
        "Batches make better use of a budget than single records (ours).",
        f"The gap of PCSGD is {join(ratios)} times the gap of DPSGD with batches, at ε = {join(epsilons)}.",
        min(ratios) > 1,
        remark,
    )


def _worth(means: dict[tuple[str, float], float], remark: str) -> Finding:
    epsilons = sorted({epsilon for _, epsilon in means})
    least = [min((value, name) for (name, at), value in means.items() if at == epsilon) for epsilon in epsilons]
    return Finding(
        "At a certified ε the best rule is better than not training (ours).",
        "; ".join(f"ε = {at:g}: {name}, {value:.2g}" for at, (value, name) in zip(epsilons, least, strict=True)) + ".",
        max(value for value, _ in least) < 1,
        remark,
    )


def _series(found: list[Found]) -> Series:
    errors = [one.ratio.std() / np.sqrt(one.ratio.size) for one in found]
    y = np.array([one.ratio.mean() for one in found])
    low, high = np.maximum(y - 2 * np.array(errors), 0.3 * y), y + 2 * np.array(errors)
    return Series(found[0].name, [one.epsilon for one in found], y, low, high, colour=COLOURS[found[0].name])


def _start(found: list[Found]) -> Series:
    epsilons = sorted({one.epsilon for one in found})
    return Series("not training at all", [epsilons[0], epsilons[-1]], [1.0, 1.0], kind="dashed", colour="#636363")


def _table(found: list[Found]) -> Table:
    columns = ("rule", "certified ε", "gap relative to the start", "standard error", "clip", "cap", "noise", "sampling")
    rows = []
    for one in sorted(found, key=lambda one: (one.epsilon, one.ratio.mean())):
        clip, cap = getattr(one.rule.clip, "threshold", None), getattr(one.rule.feedback, "cap", None)
        noise = getattr(one.rule.noise, "std", None)
        error = float(one.ratio.std() / np.sqrt(one.ratio.size))
        cap = None if cap is None else cap.threshold
        rows.append((one.name, one.epsilon, float(one.ratio.mean()), error, clip, cap, noise, str(one.rule.sampling)))
    return Table("Tuned, calibrated and run", columns, rows)
