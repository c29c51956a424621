"""What `clipsilon demo` runs: what clipping costs, what error feedback repairs, and what is private *and* good.

Two problems, in under a minute.

It writes a short page of the kind that `clipsilon reproduce` writes, for a reader who is new to the subject: first the
picture and what to take away from it, then the statements with their verdicts, numbers and parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import RenderableType

from clipsilon.analysis.fixed_points import clipping_bias, stable_point
from clipsilon.engine.sweep import Run
from clipsilon.privacy.auditing.audit import Audit, audit
from clipsilon.privacy.calibration import calibrate, calibrated
from clipsilon.problems.problem import Problem
from clipsilon.report.charts import Chart, Series, Table, band
from clipsilon.report.files import result_files, write_files
from clipsilon.report.ownership import check_report_folder
from clipsilon.report.page import element, frame, wrap
from clipsilon.report.sections import (
    Chapter,
    Done,
    chapter_section,
    footer,
    header,
    quoted_figure,
    result_section,
    verdict_list,
)
from clipsilon.report.terminal import bars, number_table
from clipsilon.report.text import readable
from clipsilon.reproduce.base import Experiment, Finding, Lab, Result
from clipsilon.reproduce.problems import credit_data, credit_problem, quadratic
from clipsilon.rules.clipping import bound_of
from clipsilon.rules.presets import PCSGD, SGD, CorrelatedSGD, DiceSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant, InverseTime

TITLE = "Private training in one minute"
LEAD = (
    "Four methods train the same model: SGD without privacy; PCSGD, which clips each record's gradient and adds "
    "noise; DiceSGD, which also feeds back what clipping cut off; and CorrelatedSGD, which takes most of its noise "
    "back in later steps. The records react to the deployed model, as loan applicants react to a credit score. The "
    "target is the stable model: the one that is best for the data it causes."
)
CERTIFIED = 1.0  # ε of CorrelatedSGD
COLUMNS = ("rule", "final gap ‖θ − θ_PS‖²", "exact clipping bias", "claimed ε", "certified ε", "audited ε ≥")
NEXT_STEPS = {
    "clipsilon bias data.csv --target COLUMN": "what clipping will cost on your own table, before any training",
    "clipsilon fit data.csv --target COLUMN --epsilon 1": "a private model of your own table, with its certified ε",
    "clipsilon reproduce --quick": "every figure and statement of the papers, beside what is measured",
}
MADE_BY = "Written by `clipsilon demo`. Credit data: {source}. The page is one file and needs no network."


class Case(NamedTuple):
    """One problem of the demo, and how it is run.

    Parameters
    ----------
    title : str
        Heading on the page and in the terminal.
    problem : Problem
        The records, the loss and the reaction.
    step : InverseTime
        Step sizes of the papers' rules.
    start : float
        Every entry of θ at the start.
    run_steps, replicates : int
        Length and number of the runs.
    epsilon : float
        The ε that the papers claim for the noise, at δ = 1/m.
    audit_runs : int
        Runs of each attack on each side.
    private : Rule
        CorrelatedSGD; the noise for a certified ε of `CERTIFIED` is still to be found.
    private_steps : int
        Length of its runs.
    """

    title: str
    problem: Problem
    step: InverseTime
    start: float
    run_steps: int
    replicates: int
    epsilon: float
    audit_runs: int
    private: Rule
    private_steps: int


class Row(NamedTuple):
    """One row of the table.

    Parameters
    ----------
    rule : str
        Name of the rule.
    gap : float
        Mean squared distance from θ_PS at the end.
    bias : float
        Exact clipping bias.
    claimed, certified, audited : float or None
        ε as claimed by the papers, as proven, and as demonstrated by an attack; None if there is no claim or attack.
    """

    rule: str
    gap: float
    bias: float
    claimed: float | None
    certified: float
    audited: float | None


class Takeaway(NamedTuple):
    """One lesson: a short heading, and the numbers behind it."""

    heading: str
    text: str


def quadratic_case() -> Case:
    """Return paper 1's first problem: a = 10, b = 1, p = 0.1, c = 1, ε = 0.1, with the stronger reaction β = 0.05."""
    title = "Quadratic problem, reaction β = 0.05"
    private = CorrelatedSGD(Constant(0.0003), clip=20.0, noise_std=1.0)
    return Case(title, quadratic(beta=0.05), InverseTime(10, 100), 5.0, 100_000, 20, 0.1, 100, private, 100_000)


def credit_case() -> tuple[Case, str]:
    """Return paper 1's credit problem with β = 0.1, and the source of its data."""
    title = "Credit data, reaction β = 0.1"
    problem = credit_problem(beta=0.1)
    private = CorrelatedSGD(Constant(0.01), clip=4.0, noise_std=1.0, batch=44, sampling="cyclic")
    steps = 8 * (problem.records // 44)
    case = Case(title, problem, InverseTime(50, 5000), 0.0, 500_000, 8, 1.0, 40, private, steps)
    return case, credit_data().source


def demo(lab: Lab, folder: Path, tell: Callable[[str], object] = lambda text: None) -> list[Done]:
    """Run both problems and write the page with its files.

    Parameters
    ----------
    lab : Lab
        Where the runs are made and stored.
    folder : Path
        Folder of the page; it is created if necessary.
    tell : callable, optional
        Called with each line of progress.

    Returns
    -------
    list of Done
        The quadratic problem and the credit data.

    Raises
    ------
    ValueError
        Before anything is computed, if the folder holds a page or results that this tool did not write.
    """
    check_report_folder(folder, ("quadratic", "credit"))
    tell(f"{TITLE}\n\n{LEAD}\n")
    credit, source = credit_case()
    tell(f"Credit data: {source}.")
    done = []
    for name, case in (("quadratic", quadratic_case()), ("credit", credit)):
        tell(f"{case.title}: four methods, and attacks on three of them (compiled on first use)…")
        experiment, result = _experiment(name, case), compare(case, lab)
        done.append(Done(experiment, result))
        write_files(folder, result_files(experiment, result, lab.quick))
    write_files(folder, {"index.html": page(done, source).encode()})
    return done


def compare(case: Case, lab: Lab) -> Result:
    """Run all rules on one problem: the papers' with clip 1 and their noise, and CorrelatedSGD with certified noise."""
    rules, private = _rules(case), _private_rule(case)
    goal, biases = (
        stable_point(case.problem).theta,
        [clipping_bias(case.problem, clip) for clip in (1.0, _clip(private))],
    )
    plans = [(rule, case.run_steps) for rule in rules] + [(private, case.private_steps)]
    traces = lab.sweep(
        [Run(case.problem, rule, steps, case.start, case.replicates, record=80) for rule, steps in plans]
    )
    gaps = [trace.gap(goal, "theta" if trace.average is None else "average") for trace in traces]
    lines = [band(trace.rule, trace.iterations[1:], gap[:, 1:]) for trace, gap in zip(traces, gaps, strict=True)]
    ends = traces[0].iterations[[1, -1]]
    level = Series("clipping bias, computed beforehand", ends, biases[:1] * 2, kind="dashed", colour="#5b4bb7")
    audits = [lab.keep(_attack, rule, case.problem.records, steps, case.audit_runs) for rule, steps in plans[1:]]
    found = [float(gap[:, -1].mean()) for gap in gaps]
    rows = [
        Row(rules[0].name, found[0], 0.0, None, math.inf, None),  # no noise
        Row(rules[1].name, found[1], biases[0], *_epsilons(audits[0])),
        Row(rules[2].name, found[2], 0.0, *_epsilons(audits[1])),
        Row(private.name, found[3], biases[1], *_epsilons(audits[2])),
    ]
    y = "squared distance from the target, ‖θ_t − θ_PS‖²"
    chart = Chart(case.title, "training step t", y, [*lines, level], x_log=True, y_log=True)
    findings = [
        *_accuracy_findings(found, biases[0]),
        *map(_privacy_finding, rules[1:], audits[:2]),
        _private_and_good(rows),
    ]
    return Result(findings, [chart], [Table("Accuracy and privacy: claimed, certified, audited", COLUMNS, rows)])


def _rules(case: Case) -> tuple[Rule, Rule, Rule]:
    def with_published_noise(rule: Rule) -> Rule:
        m = case.problem.records
        return calibrate(rule, case.epsilon, 1 / m, m, case.run_steps, how="paper")

    return (
        SGD(case.step),
        with_published_noise(PCSGD(case.step, clip=1.0, noise_std=1.0)),
        with_published_noise(DiceSGD(case.step, clip=1.0, error_clip=1.0, noise_std=1.0)),
    )


def _private_rule(case: Case) -> Rule:
    m = case.problem.records
    return calibrated(case.private, CERTIFIED, 1 / m, m, case.private_steps)


def _clip(rule: Rule) -> float:
    return bound_of(rule.clip)


def _attack(rule: Rule, records: int, run_steps: int, runs: int) -> Audit:
    return audit(rule, records, run_steps, 1 / records, runs=runs, seed=0, progress=False)


def _epsilons(found: Audit) -> tuple[float | None, float, float]:
    """Return the claimed, certified and audited ε."""
    return found.statement.claimed, found.statement.certified, found.lower_bound


def _accuracy_findings(ends: Sequence[float], bias: float) -> list[Finding]:
    clipped, fed_back = ends[1:3]
    deviation = abs(clipped / bias - 1)
    return [
        Finding(
            "Clipping alone moves the end of the run away from θ_PS, by a bias that is known before any run.",
            f"PCSGD ends at a squared distance of {clipped:.4g}, which deviates from the exact bias {bias:.4g} by "
            f"{deviation:.1%}.",
            deviation < 0.5,
            "" if deviation < 0.05 else "The run ends before it has converged.",
        ),
        Finding(
            "Error feedback removes this bias.",
            f"DiceSGD ends at {fed_back:.4g}, {readable(round(clipped / fed_back))} times closer than PCSGD in squared "
            "distance.",
            fed_back < 0.1 * min(clipped, bias),
        ),
    ]


def _privacy_finding(rule: Rule, found: Audit) -> Finding:
    stated = found.statement
    claimed = float(stated.claimed or 0)
    return Finding(
        f"With the published noise, {rule.name} is private with ε = {readable(claimed)}.",
        f"The smallest ε that can be proven is {readable(stated.certified)}, for the replacement of one record; an "
        f"attack with {found.runs} runs demonstrates ε ≥ {found.lower_bound:.3g} at {found.confidence:.0%} confidence.",
        bool(stated.claim_holds and found.lower_bound <= claimed),
    )


def _private_and_good(rows: Sequence[Row]) -> Finding:
    _, clipped, _, private = rows
    closer = clipped.gap / private.gap
    return Finding(
        f"A rule with a proven ε of {CERTIFIED:g} comes close to the target.",
        f"CorrelatedSGD ends at {private.gap:.4g}, {readable(float(f'{closer:.3g}'))} times closer than PCSGD in "
        f"squared distance. Its certified ε is {readable(private.certified)}; an attack demonstrates ε ≥ "
        f"{readable(private.audited)}.",
        closer > 1 and private.certified <= CERTIFIED and (private.audited or 0.0) <= CERTIFIED,
    )


def _experiment(name: str, case: Case) -> Experiment:
    def make(lab: Lab) -> Result:
        """PCSGD moves towards the dashed line, which was computed before any run; DiceSGD and CorrelatedSGD pass it."""
        return compare(case, lab)

    problem = case.problem
    parameters = {
        "records": f"{problem.records}",
        "columns": f"{problem.dimension}",
        "T": f"{case.run_steps}",
        "replicates": f"{case.replicates}",
        "clip": f"1; CorrelatedSGD: {_clip(case.private):g}",
        "claimed ε": f"{case.epsilon:g}",
        "certified ε of CorrelatedSGD": f"{CERTIFIED:g}, in {case.private_steps} steps",
        "δ": f"1/{problem.records}",
    }
    return Experiment(name, 1, "section 6", case.title, parameters, make)


# -- what the reader sees first --------------------------------------------------------------------------------------


def takeaways(result: Result) -> list[Takeaway]:
    """Return four lessons of one problem, with its numbers."""
    _, clipped, fed_back, certain = _rows(result)
    known, repaired, *private, good = result.findings
    return [
        Takeaway(
            "Clipping has a price, and you can know it before training."
            if known.holds
            else "Clipping has a price, and this run does not show it yet.",
            "Clipping limits what one record can contribute, and moves the model away from the target however long it "
            f"is trained: PCSGD ends at a squared distance of {clipped.gap:.3g}. The exact limit, {clipped.bias:.3g} "
            "(dashed in the picture), was computed before any run.",
        ),
        Takeaway(
            "Error feedback removes that price." if repaired.holds else "Error feedback has not removed that price.",
            "DiceSGD clips just as hard, but adds later what was cut off. It ends at "
            f"{readable(float(f'{fed_back.gap:.2g}'))}, {readable(round(clipped.gap / fed_back.gap))} times closer.",
        ),
        Takeaway(
            "A claimed ε is not a proven ε." if not all(each.holds for each in private) else "The claimed ε is proven.",
            f"The smaller ε, the stronger the privacy. For the papers' noise ε = {readable(clipped.claimed)} is "
            f"claimed; what can be proven is {readable(clipped.certified)} for PCSGD and "
            f"{readable(fed_back.certified)} for DiceSGD.",
        ),
        Takeaway(
            "A model can be private and good." if good.holds else "The private rule is not good enough yet.",
            f"With a larger clip, and noise that later steps take back, CorrelatedSGD ends at "
            f"{readable(float(f'{certain.gap:.2g}'))} with a proven ε of at most {CERTIFIED:g}. This package "
            "computes the noise for the ε that you need, and reports what is proven.",
        ),
    ]


def _rows(result: Result) -> list[Row]:
    return [row for row in result.tables[0].rows if isinstance(row, Row)]


def summary(done: Sequence[Done]) -> list[RenderableType]:
    """Return what the terminal shows: final distances as bars, the lessons, then one table per problem."""
    pieces: list[RenderableType] = ["\nSquared distance from the target after training (logarithmic bars)\n"]
    for each in done:
        pieces += [each.experiment.title, bars({row.rule: row.gap for row in _rows(each.result)}) + "\n"]
    pieces.append(f"What you can take away ({done[0].experiment.title})")
    for k, (heading, text) in enumerate(takeaways(done[0].result), start=1):
        pieces.append(f"{k}. {heading} {text}")
    pieces.append("")
    pieces += [
        number_table(table._replace(title=each.experiment.title)) for each in done for table in each.result.tables
    ]
    return pieces


def page(done: Sequence[Done], source: str) -> str:
    """Return the short page: the picture and its lessons, then the credit data, privacy, and the details."""
    quadratic_done, credit_done = done
    body = [header(TITLE, LEAD), _first_screen(quadratic_done)]
    body += [chapter_section(chapter, done) for chapter in _chapters(quadratic_done.result, credit_done, source)]
    body += [element("h2", "What you can do next"), _next_steps()]
    body += [element("h2", "Details: every statement with its verdict", id="verdicts"), verdict_list(done)]
    body += [result_section(each, "clipsilon demo") for each in done]
    return frame(TITLE, [*body, footer(MADE_BY.format(source=source))])


def _first_screen(done: Done) -> str:
    items = (wrap("li", f"{element('b', heading)} {element('span', text)}") for heading, text in takeaways(done.result))
    figure = quoted_figure([done], f"{done.experiment.name}/chart-1")
    return wrap("section", figure + wrap("ol", "".join(items), class_="takeaways"), class_="tale shown first")


def _next_steps() -> str:
    lines = (
        wrap("li", wrap("div", element("code", command), class_="command") + element("span", purpose))
        for command, purpose in NEXT_STEPS.items()
    )
    return wrap("ul", "".join(lines), class_="next")


def _chapters(quadratic_result: Result, credit_done: Done, source: str) -> list[Chapter]:
    known, repaired, *_, good = credit_done.result.findings
    records = credit_done.experiment.parameters["records"]
    return [
        Chapter(
            "The same on credit data",
            [
                f"The same four methods on {readable(int(records))} credit records (data: {source}). Applicants who "
                "will default adjust their records to lower their score.",
                f"{known.measured} {known.remark}".strip(),
                repaired.measured,
                good.measured,
            ],
            "credit/chart-1",
        ),
        Chapter(
            "Claimed, certified, audited",
            [
                "The noise is what the papers prescribe: c·√(T·log(1/δ))/(m·ε) for PCSGD and √96 times as much for "
                "DiceSGD. The claimed ε is what the papers state for it; the certified ε is what can be proven; the "
                "audited ε is what an attack on the runs demonstrates, so that the true ε is not below it.",
                *map(_privacy_in_words, _rows(quadratic_result)[1:3]),
                f"CorrelatedSGD has the noise that certifies ε = {CERTIFIED:g}: nothing is claimed that is not proven.",
            ],
        ),
    ]


def _privacy_in_words(row: Row) -> str:
    """Return the three privacy columns of a row as sentences."""
    refuted = (row.audited or 0.0) > (row.claimed or 0.0)
    verdict = "so the claim is false, at the confidence of the attack" if refuted else "so it refutes nothing"
    return (
        f"{row.rule}: claimed is ε = {readable(row.claimed)}; certified, for the replacement of one record, is "
        f"ε = {readable(row.certified)}. A small attack demonstrates ε ≥ {readable(row.audited)}, {verdict}."
    )
