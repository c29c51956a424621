"""The report on one private model: a single page of HTML that holds nothing but what may be released."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from clipsilon._core import checks
from clipsilon._core.storage import write_atomically
from clipsilon.estimators.evaluation import PrivateScores
from clipsilon.estimators.evaluation.result import INTERVALS, NAMES
from clipsilon.estimators.noise_spread import RUNS, noise_margins
from clipsilon.estimators.total import TotalPrivacy, total_privacy
from clipsilon.privacy.statement import Statement, format_epsilon, neighbours
from clipsilon.privacy.warning import UNITS, PrivacyWarning
from clipsilon.report.charts import Array, Cell, Table
from clipsilon.report.embedding import embedded_figure, embedded_sheet
from clipsilon.report.ownership import check_page
from clipsilon.report.page import element, frame, wrap
from clipsilon.report.quality_charts import quality_charts
from clipsilon.report.sections import contents, footer, header
from clipsilon.report.text import readable

_PLACES = {"learnt": "What was learnt", "quality": "How good it is", "privacy": "How private it is"}
_UNCOVERED = (
    "Other fits and evaluations on the same people: each is a release of its own, and they add up.",
    "Choices made by looking at the data without a budget, such as columns, settings or a schema.",
    "The names of the columns, which are public, and so are the numbers of {units} that are not said to be noisy.",
    "What the model says about the population, and so about people who took no part.",
)
_NOISE = (
    f"The noise interval is where a coefficient would be without noise. It is found by repeating the fit {RUNS} times "
    "on made-up records, some of whose columns are empty because noise moves their coefficients most; that costs no "
    "budget. It says nothing about other samples of people, nor about what clipping changes in every fit."
)
_NO_NOISE = "How far noise moves the coefficients was not computed for this model."
_NOT_EVALUATED = (
    "The model was not evaluated within a budget, so this page says nothing about its quality: any figure computed "
    "without noise would reveal something about the people it was computed from."
)


_Margins = tuple[Array, Array] | None


class _Subject(NamedTuple):
    """What the page is about."""

    model: BaseEstimator
    scores: PrivateScores | None
    target: str
    columns: Sequence[str]
    total: TotalPrivacy

    @property
    def last(self) -> BaseEstimator:
        """The estimator itself, without what prepares its columns."""
        return self.model[-1] if isinstance(self.model, Pipeline) else self.model


def write_report(
    path: str | Path,
    model: BaseEstimator,
    scores: PrivateScores | None = None,
    *,
    target: str = "the target",
    columns: Sequence[str] | None = None,
) -> None:
    """Write a page about a private model: its coefficients, its quality and its privacy.

    The page is one file that needs no network. It holds only what may be released if the model may.

    Parameters
    ----------
    path : str or Path
        An .html file. A page that clipsilon wrote is replaced; any other file is left alone.
    model : estimator
        A fitted private estimator, or a pipeline that ends in one.
    scores : PrivateScores, optional
        Its quality, from `private_scores`.
    target : str, default "the target"
        Name of what is predicted.
    columns : sequence of str, optional
        Names of the features; by default those that the model was fitted with.

    Raises
    ------
    ValueError
        If the file is not ours, or the model has no statement.
    """
    path = checks.path("report", path)
    check_page(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # they are on the page
        total = total_privacy(model) if scores is None else scores.total(model)
    names = _feature_names(model) if columns is None else columns
    text = model_page(_Subject(model, scores, target, names, total))
    write_atomically(path, lambda file: file.write(text.encode()))


def model_page(about: _Subject) -> str:
    """Return the whole page."""
    title = f"A private model of {about.target}"
    lead = (
        f"{type(about.last).__name__}, fitted to {about.last.statement_.size} by "
        f"{about.last.statement_.rule}. Everything on this page may be shown to whoever may see the model."
    )
    body = [
        header(title, lead, _tiles(about), contents(_PLACES)),
        element("h2", _PLACES["learnt"], id="learnt"),
        *_learnt(about),
        element("h2", _PLACES["quality"], id="quality"),
        *_quality(about.scores),
        element("h2", _PLACES["privacy"], id="privacy"),
        *_privacy(about),
        footer("Written by clipsilon. The page is one file and needs no network."),
    ]
    return frame(title, body)


def _tiles(about: _Subject) -> str:
    """Return the numbers that a reader looks for first."""
    total = about.total
    tiles = [("good" if math.isfinite(total.epsilon) else "bad", f"ε = {format_epsilon(total.epsilon)}",
              f"certified at δ = {total.delta:.4g}")]  # fmt: skip
    if about.scores is not None:
        name, figure = next(iter(about.scores.figures.items()))
        if "roc_auc" in about.scores.figures:
            name, figure = "roc_auc", about.scores.figures["roc_auc"]
        value = "–" if math.isnan(figure.value) else f"{figure.value:.3g}"
        tiles.append(("plain", value, f"{NAMES[name]}, {figure.low:.3g} to {figure.high:.3g}, privately"))
    tiles.append(("plain", readable(about.last.statement_.records), f"{UNITS[total.unit]} trained it"))
    items = (wrap("li", element("b", value) + element("span", words), class_=tone) for tone, value, words in tiles)
    return wrap("ul", "".join(items), class_="tally")


# -- what was learnt ------------------------------------------------------------------------------------------------


def _learnt(about: _Subject) -> list[str]:
    margins = noise_margins(about.last)
    tables = [_coefficients(about, margins, k) for k in range(np.atleast_2d(about.last.coef_).shape[0])]
    scaled = _scales(about) is not None
    words = "Coefficients are per unit of the scaled column; `per unit` is per unit of the column itself. "
    return [
        element("p", (words if scaled else "") + (_NOISE if margins is not None else _NO_NOISE)),
        *(embedded_sheet(f"coefficients-{k}", table) for k, table in enumerate(tables, start=1)),
    ]


def _coefficients(about: _Subject, margins: _Margins, row: int) -> Table:
    """Return the coefficients of one row of `coef_`, the largest first, and the intercept."""
    own, scales = np.atleast_2d(about.last.coef_)[row], _scales(about)
    widths = np.full(own.size, np.nan) if margins is None else np.atleast_2d(margins[0])[row]
    names = _encoded_names(about, own.size)
    head = ["column", "coefficient", "noise interval", *(["per unit"] if scales is not None else [])]
    rows: list[list[Cell]] = []
    for k in np.argsort(-np.abs(own), kind="stable"):
        cells: list[Cell] = [names[k], own[k], _interval(own[k] - widths[k], own[k] + widths[k])]
        rows.append(cells + ([own[k] / scales[k]] if scales is not None else []))
    intercept = float(np.atleast_1d(about.last.intercept_)[row])
    width = np.nan if margins is None else float(np.atleast_1d(margins[1])[row])
    last: list[Cell] = ["intercept", intercept, _interval(intercept - width, intercept + width)]
    return Table(_row_title(about.last, row), head, [*rows, last + ([None] if scales is not None else [])])


def _interval(low: float, high: float) -> str:
    """Return an interval in one cell, so that tables fit on a phone."""
    return "–" if math.isnan(low) else f"{low:.3g} to {high:.3g}".replace("-", "−")


def _row_title(last: BaseEstimator, row: int) -> str:
    classes = getattr(last, "classes_", None)
    if classes is None:
        return "Coefficients"
    label = classes[1] if len(classes) == 2 else classes[row]
    return f"Coefficients for the class {label}"


def _scales(about: _Subject) -> Array | None:
    """Return the scale of each column, if a scaler is all that stands before the estimator."""
    steps = about.model.steps if isinstance(about.model, Pipeline) else []
    scales = getattr(steps[0][1], "scale_", None) if len(steps) == 2 else None
    return scales if scales is not None and len(scales) == about.last.n_features_in_ else None


def _encoded_names(about: _Subject, size: int) -> Sequence[str]:
    """Return a name for each coefficient, of which an encoder may make several per column."""
    if len(about.columns) == size:
        return about.columns
    try:
        names = [str(name) for name in about.model[:-1].get_feature_names_out(list(about.columns))]
    except (AttributeError, TypeError, ValueError):
        names = []
    return names if len(names) == size else [f"column {k}" for k in range(1, size + 1)]


def _feature_names(model: BaseEstimator) -> list[str]:
    first = model[0] if isinstance(model, Pipeline) else model
    names = getattr(first, "feature_names_in_", None)
    return [f"column {k}" for k in range(1, first.n_features_in_ + 1)] if names is None else [str(n) for n in names]


# -- quality --------------------------------------------------------------------------------------------------------


def _quality(scores: PrivateScores | None) -> list[str]:
    if scores is None:
        return [element("p", _NOT_EVALUATED)]
    rows: list[list[Cell]] = []
    for name, (value, low, high) in scores.figures.items():
        rows.append([NAMES[name], value, _interval(low, high)])
    title = f"Evaluated privately on {scores.statement.size}"
    table = Table(title, ["", "estimate", "95 % interval"], rows)
    charts = "".join(embedded_figure(name, chart) for name, chart in quality_charts(scores).items())
    positive = f" The positive class is {scores.positive}." if scores.positive else ""
    return [
        element("p", f"{INTERVALS} A dash: the noise hides the figure.{positive}"),
        embedded_sheet("quality", table),
        wrap("div", charts, class_="figures many") if charts else "",
    ]


# -- privacy --------------------------------------------------------------------------------------------------------


def _privacy(about: _Subject) -> list[str]:
    total = about.total
    statements = _statements(about)
    covered = [reason for reason in total.reasons if reason not in (*total.notes, *total.faults)]
    return [
        *(element("p", text) for text in _plain_words(total)),
        _listed(covered),
        element("h3", "What is not covered"),
        _listed([*total.notes, *(text.format(units=UNITS[total.unit]) for text in _UNCOVERED)]),
        element("h3", "The statements in full"),
        *(_details(statement) for statement in statements),
    ]


def _plain_words(total: TotalPrivacy) -> list[str]:
    """Say what ε and δ mean for one person, or record."""
    unit, units = total.unit, UNITS[total.unit]
    difference = f"One {unit} more or less means here: {neighbours(total.adjacency, unit)}."
    if not math.isfinite(total.epsilon):
        words = f"Nothing is certified: {' '.join(total.faults) or 'no step has a certificate.'}"
        if math.isfinite(total.nominal):
            words += f" With this mended it would be ε = {format_epsilon(total.nominal)}."
        return [words, difference]
    found = detection_limit(total.epsilon, total.delta, 0.01)
    return [
        f"Proven: ε = {format_epsilon(total.epsilon)} at δ = {total.delta:.4g}. Whoever sees this page and the model, "
        f"and knows all other data, can hardly tell whether one given {unit} was in it: a test that is wrong about 1 "
        f"in 100 {units} that were not finds at most {100 * found:.3g} in 100 of those that were.",
        difference,
    ]


def detection_limit(epsilon: float, delta: float, false_alarms: float) -> float:
    """Return the largest power of any test for one person's data under (ε, δ)-differential privacy.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.
    false_alarms : float
        The test's probability of a false alarm.

    Returns
    -------
    float
        The smaller one of e^ε·α + δ and 1 − e^−ε·(1 − δ − α), and at most 1.
    """
    factor = math.exp(min(epsilon, 700.0))
    return min(1.0, factor * false_alarms + delta, 1.0 - (1.0 - delta - false_alarms) / factor)


def _statements(about: _Subject) -> list[Statement]:
    steps = [step for _, step in about.model.steps] if isinstance(about.model, Pipeline) else [about.model]
    found = [step.statement_ for step in steps if isinstance(getattr(step, "statement_", None), Statement)]
    return found if about.scores is None else [*found, about.scores.statement]


def _details(statement: Statement) -> str:
    title = f"{statement.rule}: ε = {format_epsilon(statement.certified)} at δ = {statement.delta:.4g}"
    return wrap("details", element("summary", title) + _listed(statement.reasons))


def _listed(sentences: Sequence[str]) -> str:
    return wrap("ul", "".join(element("li", sentence) for sentence in sentences), class_="plain-list")
