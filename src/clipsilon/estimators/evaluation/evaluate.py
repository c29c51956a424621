"""Evaluate a model on people's rows within a privacy budget."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.random import Generator
from scipy import sparse
from scipy.special import expit
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from clipsilon._core import checks
from clipsilon.engine.streams import spawn
from clipsilon.estimators.base import seed_from
from clipsilon.estimators.evaluation import grids
from clipsilon.estimators.evaluation.auc import area
from clipsilon.estimators.evaluation.curves import calibration_curve, roc_curve
from clipsilon.estimators.evaluation.histograms import Integers, draw_histogram, with_total
from clipsilon.estimators.evaluation.means import Histograms, mean
from clipsilon.estimators.evaluation.people import count_people
from clipsilon.estimators.evaluation.predictions import Scored, score_rows
from clipsilon.estimators.evaluation.ratios import Array, Counts, Figure, ratio
from clipsilon.estimators.evaluation.result import PrivateScores
from clipsilon.estimators.evaluation.triples import draw_triples, estimate_area
from clipsilon.estimators.people import hash_people
from clipsilon.estimators.seen_rows import compute_digests, count_seen, identify_rows
from clipsilon.privacy.accounting import gaussian, profiles
from clipsilon.privacy.accounting.profiles import Profile
from clipsilon.privacy.budget import Budget, charge_to
from clipsilon.privacy.certificate import ADJACENCIES, Certificate
from clipsilon.privacy.statement import SEEDED, Statement, about_seed
from clipsilon.privacy.warning import PrivacyWarning, warn_about_delta

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Column, RandomState, Table

_GRID_SHARE = 1 / 8  # of μ², for choosing the bins
_MOST_NOISE = 2**16  # standard deviation, in units of one person
_RULE = "private evaluation"
_FIGURES = dict.fromkeys(("all", "auc"))
_TWO_CLASSES = "binary", "ranking"  # kinds of models that have an AUC


class _Binned(NamedTuple):
    """Noisy counts in cells and in bins, and the cells that begin these."""

    both: Histograms
    edges: Integers

    @property
    def noisy(self) -> Counts:
        """The counts in bins."""
        return self.both.bins


def private_scores(
    model: BaseEstimator,
    X: Table,
    y: Column,
    epsilon: float,
    delta: float = 1e-5,
    *,
    figures: str = "all",
    groups: Column | None = None,
    held_out: bool = False,
    adjacency: str | None = None,
    target_range: Sequence[float] | None = None,
    random_state: RandomState = None,
    budget: Budget | str | PathLike[str] | None = None,
) -> PrivateScores:
    """Evaluate a fitted model within a privacy budget: each figure with a confidence interval, ROC and calibration.

    Parameters
    ----------
    model : estimator
        A fitted classifier or regressor, or a pipeline that ends in one, of this package or of scikit-learn.
    X, y : array-like
        The rows to evaluate it on, and their targets.
    epsilon, delta : float
        The budget of this evaluation.
    figures : {"all", "auc"}, default "all"
        "auc" spends the whole budget on the AUC of a model with two classes, whose interval is then narrower: far
        narrower if one class is rare. This needs no δ, but a public number of people: not "add-remove".
    groups : array-like, optional
        The person of each row, who is protected with all their rows. Everybody counts the same: the rows of a person
        share one unit of weight. None if each row is another person.
    held_out : bool, default False
        Whether nobody in X is among those who trained the model, nor among those who chose it. This must follow from
        how the people were drawn: without looking at their data, which a stratified split does, and with "add-remove"
        each person by a coin of their own. It matters to `PrivateScores.total` only.
    adjacency : str, optional
        What is hidden: "zero-out", "replace-one", or "add-remove", under which the number of people is not public.
        By default what the model's statement says, or else "zero-out".
    target_range : pair of numbers, optional
        For a regressor: the public range of the targets. Errors larger than its width count as this width. By default
        the model's `target_range_`.
    random_state : int, RandomState or None, default None
        None for cryptographic noise. A seed makes the evaluation repeatable, and unfit for release.
    budget : Budget or path, optional
        A budget file to charge before the rows are counted (`clipsilon.Budget`).

    Returns
    -------
    PrivateScores

    Formal guarantee
    ----------------
    Without `random_state`, the result is (epsilon, delta)-differentially private for people in X, under `adjacency`,
    given the model, if this predicts each row by itself; some rows are tested. The model is not covered:
    `PrivateScores.total` adds what it spent.

    Examples
    --------
    >>> import numpy as np
    >>> import clipsilon as cs
    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.random.default_rng(0).normal(size=(6000, 2))
    >>> y = X[:, 0] + np.random.default_rng(1).normal(size=6000) > 0
    >>> model = LogisticRegression().fit(X[:2000], y[:2000])
    >>> auc = cs.private_scores(model, X[2000:], y[2000:], epsilon=1.0).figures["roc_auc"]
    >>> 0.75 < auc.low < auc.value < auc.high < 0.92
    True
    """
    mu = gaussian.largest_mu(checks.positive("epsilon", epsilon), checks.open_fraction("delta", delta))
    checks.choice("figures", figures, _FIGURES)
    checks.flag("held_out", held_out)
    adjacency = _stated_adjacency(model) if adjacency is None else adjacency
    checks.choice("adjacency", adjacency, ADJACENCIES)
    noise = spawn(seed_from(random_state), 1)[0].noise
    if held_out:
        _check_training_rows(model, X, groups)
    alone = figures == "auc"
    amount = _epsilon_each(epsilon, adjacency) if alone else _noise_std(mu, adjacency)
    scored = score_rows(model, X, y, target_range, grids.FINE if alone else grids.COARSE)
    if alone and scored.kind not in _TWO_CLASSES:
        raise ValueError("figures must be 'all' unless the model has two classes, got 'auc'.")
    people, rows_of = count_people(groups, len(scored.cells))
    hidden = adjacency == "add-remove"
    spent = _spend_laplace(epsilon) if alone else _spend_gaussian(mu)
    statement = _state(spent, 0 if hidden else people, delta, adjacency, groups is not None)
    statement = about_seed(statement, random_state is not None)
    charge_to(budget, statement, lambda key: _identify(X, key))
    if random_state is not None:
        warnings.warn(f"{SEEDED} Nothing is certified of this evaluation.", PrivacyWarning, stacklevel=2)
    if alone:
        area_alone = estimate_area(draw_triples(scored, rows_of, people, amount, noise))
        return PrivateScores({"roc_auc": area_alone}, None, None, scored.positive, people, held_out, statement)
    binned = _count(scored, rows_of, None if hidden else people, amount, noise)
    if hidden:
        people = max(1, round(float(binned.noisy.counts.sum())))
        statement = replace(statement, records=people)
    warn_about_delta(delta, people, unit=statement.unit)
    return _summarize(scored, binned, people, held_out, statement)


def _stated_adjacency(model: BaseEstimator) -> str:
    """Return the adjacency of the model's statement, or "zero-out"."""
    statement = getattr(_last(model), "statement_", None)
    return statement.adjacency if isinstance(statement, Statement) else "zero-out"


def _identify(X: Table, key: int) -> str | None:
    """Return a digest of the rows, None if they are not numbers."""
    try:
        return identify_rows(X, key)
    except (TypeError, ValueError):
        return None


def _last(model: BaseEstimator) -> BaseEstimator:
    return model[-1] if isinstance(model, Pipeline) else model


def _noise_std(mu: float, adjacency: str) -> float:
    """Return the deviation of the noise on one histogram that is μ-GDP, in units of one person."""
    change = sqrt(2.0) if adjacency == "replace-one" else 1.0
    std = change / mu * (1.0 + 2.0**-50)  # not below, whatever was rounded
    if std > _MOST_NOISE:
        raise ValueError(f"epsilon must be large enough for noise of at most {_MOST_NOISE} people, got {std:.3g}.")
    return std


def _epsilon_each(epsilon: float, adjacency: str) -> float:
    """Return the ε of the noise on sums over triples: replacing a person is zeroing out one and adding another."""
    if adjacency == "add-remove":
        raise ValueError(
            "adjacency must be 'zero-out' or 'replace-one' for figures 'auc', whose noise depends on the number of "
            "people, got 'add-remove'."
        )
    each = epsilon / 2 if adjacency == "replace-one" else epsilon
    if each * _MOST_NOISE < 1:
        raise ValueError(f"epsilon must be large enough for noise of at most {_MOST_NOISE} people, got {1 / each:.3g}.")
    return each


def _count(scored: Scored, rows_of: Integers, people: int | None, std: float, rng: Generator) -> _Binned:
    """Count each outcome in cells by a first histogram, and by a second one in bins that the first has chosen."""
    classes = 1 if scored.kind == "numbers" else 2
    first = std / sqrt(_GRID_SHARE) * (1.0 + 2.0**-50)
    own_cells = scored.outcomes * grids.CELLS + scored.cells
    cells = draw_histogram(own_cells, rows_of, classes, grids.CELL_LEVELS, first, rng)
    if people is not None:
        cells = with_total(cells, people)
    everybody = cells.counts.reshape(classes, -1).sum(axis=0)
    levels = grids.choose_levels(float(everybody.sum()))
    edges = grids.choose_edges(everybody, levels, first, None if scored.kind == "numbers" else grids.ZERO)
    within = np.searchsorted(edges, np.arange(grids.CELLS), side="right")
    bin_of = (np.arange(classes)[:, np.newaxis] * 2**levels + within).ravel()
    second = std / sqrt(1.0 - _GRID_SHARE) * (1.0 + 2.0**-50)
    bins = draw_histogram(bin_of[own_cells], rows_of, classes, levels, second, rng)
    return _Binned(Histograms(cells, bins if people is None else with_total(bins, people), bin_of), edges)


def _summarize(scored: Scored, binned: _Binned, people: int, held_out: bool, statement: Statement) -> PrivateScores:
    """Compute everything else from the noisy counts."""
    noisy, edges = binned.noisy, binned.edges
    two = scored.kind in _TWO_CLASSES
    calibrated = None
    if scored.kind == "binary":
        calibrated = calibration_curve(noisy, expit(grids.score_at(grids.spread(edges))).mean(axis=1))
    return PrivateScores(
        figures=_number_figures(binned, scored.width)
        if scored.kind == "numbers"
        else _class_figures(binned, scored.kind),
        roc=roc_curve(noisy) if two else None,
        calibration=calibrated,
        positive=scored.positive,
        people=people,
        held_out=held_out,
        statement=statement,
    )


def _class_figures(binned: _Binned, kind: str) -> dict[str, Figure]:
    noisy, edges = binned.noisy, binned.edges
    size = edges.size + 1
    everybody, positive = np.ones(2 * size), np.repeat([0.0, 1.0], size)
    if kind == "classes":
        return {"accuracy": ratio(noisy, positive, everybody), "log_loss": mean(binned.both, *_true_losses(edges))}
    predicted = np.concatenate([[0], edges]) >= grids.ZERO
    right = np.concatenate([~predicted, predicted]).astype(float)
    figures = {"accuracy": ratio(noisy, right, everybody), "roc_auc": area(binned.both)}
    if kind == "binary":
        figures["log_loss"] = mean(binned.both, *_losses(edges))
    return {**figures, "positive_rate": ratio(noisy, positive, everybody)}


def _true_losses(edges: Integers) -> tuple[Array, Array]:
    """Return the log loss, by the log-odds of the true class, at places in each cell and on average in each bin."""
    cells, bins = (np.tile(np.logaddexp(0.0, -grids.score_at(places)), (2, 1)) for places in _places(edges))
    return cells, bins.mean(axis=1)


def _losses(edges: Integers) -> tuple[Array, Array]:
    """Return the log loss of both classes, by the log-odds, at places in each cell and on average in each bin.

    Within a bin, the frequency of the class is expected to grow as the log-odds say.
    """
    cells, bins = (grids.score_at(places) for places in _places(edges))
    bins = np.concatenate([-bins, bins])
    expected = np.average(np.logaddexp(0.0, -bins), axis=1, weights=np.exp(bins / 2))
    return np.logaddexp(0.0, np.concatenate([cells, -cells])), np.asarray(expected)


def _places(edges: Integers) -> tuple[Array, Array]:
    """Return eight positions in each cell and in each bin."""
    return grids.spread(np.arange(1, grids.CELLS)), grids.spread(edges)


def _number_figures(binned: _Binned, width: float) -> dict[str, Figure]:
    cells, bins = (grids.error_at(places) * width for places in _places(binned.edges))
    squared = mean(binned.both, np.square(cells), np.square(bins).mean(axis=1))
    return {
        "mean_absolute_error": mean(binned.both, cells, bins.mean(axis=1)),
        "root_mean_squared_error": Figure(*np.sqrt(squared).tolist()),
    }


class _Spent(NamedTuple):
    """What an evaluation spends, on how many histograms or sums, the reason, and what it covers."""

    profile: Profile
    steps: int
    reason: str
    covers: str


def _spend_gaussian(mu: float) -> _Spent:
    reason = f"Two noisy histograms of the scores: Gaussian differential privacy with μ = {mu:.4g}."
    return _Spent(profiles.gaussian(mu), 2, reason, "The figures and curves are")


def _spend_laplace(epsilon: float) -> _Spent:
    reason = f"Three sums over triples of people with Laplace noise: ε = {epsilon:.4g} with δ = 0."
    return _Spent(profiles.add(profiles.gaussian(0.0), epsilon), 3, reason, "The AUC and its interval are")


def _state(spent: _Spent, people: int, delta: float, adjacency: str, grouped: bool) -> Statement:
    whose = (
        "Each person has one unit of weight, which their rows share: all rows of a person are protected together."
        if grouped
        else "Each row is one person's: whoever has several rows is not covered without groups."
    )
    reasons = (
        spent.reason,
        whose,
        _ABOUT_SIZE[adjacency],
        f"{spent.covers} covered, and anything computed from them. The model has a statement of its own.",
        "One evaluation is covered: each further one on the same people is a release of its own.",
    )
    certificate = Certificate(spent.profile, reasons)
    about = people, spent.steps, delta, adjacency, certificate.epsilon(delta)
    return Statement(_RULE, *about, None, None, reasons, certificate, unit="person" if grouped else "record")


_ABOUT_SIZE = {
    "zero-out": "A person who is zeroed out is counted nowhere. The number of people is public.",
    "replace-one": "The number of people is public.",
    "add-remove": "The number of people is not public: the one that is stated here is a noisy count.",
}


def _check_training_rows(model: BaseEstimator, X: Table, groups: Column | None) -> None:
    """Raise ValueError if people trained the model, and warn about equal rows, as far as this process knows those."""
    statement = getattr(_last(model), "statement_", None)
    if isinstance(statement, Statement) and statement.unit == "person":
        # Without groups it is not known who they are.
        people = None if groups is None else np.unique(hash_people(groups, len(np.asarray(groups))))
        seen = 0 if people is None else count_seen(_last(model), people)
        if seen:
            raise ValueError(f"held_out must be False for people who trained the model, got {seen} of them.")
        return
    features = model[:-1].transform(X) if isinstance(model, Pipeline) and len(model) > 1 else X
    table: Any = features if sparse.issparse(features) else np.asarray(features)
    seen = count_seen(_last(model), compute_digests(table, table.shape[1]))
    if seen:
        warnings.warn(
            f"held_out: {seen} rows equal rows that trained the model. Whoever is in both spends the sum of both ε, "
            "which the total does not count: evaluate on other people's rows, or leave held_out at False.",
            PrivacyWarning,
            stacklevel=3,
        )
