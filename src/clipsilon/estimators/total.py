"""The privacy of several releases on one data set together, such as the fitted steps of a pipeline."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline

from clipsilon._core import checks
from clipsilon.estimators.steps import find_fault, find_held
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.accounting.joint import joint_epsilon
from clipsilon.privacy.statement import Statement, finite_or_none, format_epsilon, neighbours
from clipsilon.privacy.warning import PrivacyWarning


class TotalPrivacy(NamedTuple):
    """What several releases spent: together they are (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        Infinite if one of them is not covered.
    delta : float
        The δ at which ε holds.
    adjacency : str
        "zero-out", "add-remove" or "replace-one".
    reasons : tuple of str
        The faults, how ε is composed, and the notes.
    notes : tuple of str
        What is not covered, such as the other fits of a search.
    faults : tuple of str
        Why ε is infinite although the private steps could be certified, such as a seed.
    nominal : float
        The ε with the faults mended; `epsilon` if there are none.
    unit : {"record", "person"}
        In what neighbouring data sets differ.
    """

    epsilon: float
    delta: float
    adjacency: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    faults: tuple[str, ...]
    nominal: float
    unit: str = "record"

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON: an infinite ε becomes None."""
        finite = {"epsilon": finite_or_none(self.epsilon), "nominal": finite_or_none(self.nominal)}
        return {**self._asdict(), **finite}

    def __str__(self) -> str:
        lines = [f"all steps: {format_total(self)}", f"  neighbours: {neighbours(self.adjacency, self.unit)}"]
        lines += [f"  - {reason}" for reason in self.reasons if reason not in self.notes]
        return "\n".join(lines + [f"  - Not covered: {note}" for note in self.notes])


def format_total(total: TotalPrivacy) -> str:
    """Return ε at δ as text, with the nominal ε if faults prevent a certificate."""
    text = f"ε = {format_epsilon(total.epsilon)} at δ = {total.delta:g}"
    if total.faults and math.isfinite(total.nominal):
        text += f", nominal: ε = {format_epsilon(total.nominal)} with this mended"
    return text


def total_privacy(steps: Any, delta: float | None = None, *, rows: Any = None) -> TotalPrivacy:
    """Compose the privacy of several releases on one data set.

    Each fault and each note warns with a `PrivacyWarning`. What a statement does not cover, such as the other fits of
    an estimator, is not covered here either. Nothing is certified if a step learnt from the data without a statement,
    if a step looks at several rows at a time, or if a search chose by scores on the records. If a step's data were
    public, list the other steps alone.

    Parameters
    ----------
    steps : pipeline, search, estimator, Statement, PrivacyEngine, or list of these
        Fitted steps, their statements, or PyTorch engines that trained. Of a search the best estimator is taken.
    delta : float, optional
        The δ at which ε is certified; by default the sum of those of the statements.
    rows : array-like, optional
        Rows to test functions with that have no statement, such as those of a `FunctionTransformer`: each must treat
        them one by one. Made-up numbers by default.

    Returns
    -------
    TotalPrivacy
        ε and δ of all steps, with reasons.

    Formal guarantee
    ----------------
    The outputs of all steps together are (epsilon, delta)-private under the adjacency of their statements. Gaussian
    steps compose exactly, μ² = Σμ_i²; with others, all are composed on one curve, or ε and δ add up where that gives
    less. Which functions look at several rows is tested, not proven.
    """
    choices: list[str] = []
    parts = list(_parts(steps, choices))
    stated = [_statement(part) for part in parts]
    spent = [statement for statement in stated if statement is not None]
    if not spent:
        raise ValueError(f"steps must hold a fitted private step, got {_type_names(parts)}.")
    adjacencies = sorted({statement.adjacency for statement in spent})
    if len(adjacencies) > 1:
        raise ValueError(f"steps must be about the same kind of neighbours, got {', '.join(adjacencies)}.")
    unit = _unit(spent)
    own = sum(statement.delta for statement in spent)
    level = checks.open_fraction("delta", own if delta is None else delta)
    if math.isclose(level, own, rel_tol=1e-12):  # sums of fractions are off by rounding
        level = own
    nominal, reasons = _compose([statement.mended or statement for statement in spent], level, own)
    others = [part for part, statement in zip(parts, stated, strict=True) if statement is None]
    faults = (*choices, *_faults(spent), *filter(None, (find_fault(part, rows) for part in others)))
    notes = tuple(f"{one.rule}: {note}" for one in spent for note in one.notes if note not in one.faults)
    for warning in faults + notes:
        warnings.warn(warning, PrivacyWarning, stacklevel=2)
    epsilon = math.inf if faults else nominal
    return TotalPrivacy(epsilon, level, adjacencies[0], (*faults, *reasons, *notes), notes, faults, nominal, unit)


def _unit(spent: list[Statement]) -> str:
    """Return what all statements are about; those that cost nothing hold for people as well as for records."""
    units = {one.unit for one in spent if _mu(one) != 0} or {spent[0].unit}
    if len(units) > 1:
        raise ValueError(
            "steps must all protect people or all protect records, got both: pass groups to every step that learns."
        )
    return units.pop()


def _faults(spent: list[Statement]) -> Iterator[str]:
    for statement in spent:
        yield from (f"{statement.rule}: {fault}" for fault in statement.faults)


def _compose(spent: list[Statement], level: float, own: float) -> tuple[float, list[str]]:
    """Return the ε of all statements at δ = `level`, and the reasons; `own` is the sum of their own δ."""
    fraction = level / own
    each = [(one, one.epsilon(one.delta * fraction)) for one in spent]
    reasons = [f"{one.rule}: ε = {format_epsilon(epsilon)} at δ = {one.delta * fraction:.4g}." for one, epsilon in each]
    mus = [_mu(one) for one in spent]
    curves = [one.certificate.profile for one in spent if one.certificate.profile is not None]
    if len(spent) == 1 or len(curves) < len(spent):
        return sum(epsilon for _, epsilon in each), reasons
    gaussians = [(one.delta, mu) for one, mu in zip(spent, mus, strict=True) if mu is not None]
    basic = sum(epsilon for (_, epsilon), mu in zip(each, mus, strict=True) if mu is None)
    if gaussians:
        mu = math.hypot(*(mu for _, mu in gaussians))
        basic += gaussian.epsilon(mu, fraction * sum(delta for delta, _ in gaussians))
    together = min(basic, joint_epsilon(curves, level))
    return together, [*reasons, f"Composed: ε = {format_epsilon(together)} at δ = {level:.4g}."]


def _mu(statement: Statement) -> float | None:
    profile = statement.certificate.profile
    return None if profile is None else profile.mu


def _statement(part: Any) -> Statement | None:
    """Return the statement of a release: itself, that of a fitted estimator, or that of a PyTorch engine."""
    if isinstance(part, Statement):
        return part
    stated = getattr(part, "statement_", None)
    if stated is None and callable(getattr(part, "statement", None)):
        stated = part.statement()
    return stated if isinstance(stated, Statement) else None


def _parts(steps: Any, choices: list[str]) -> Iterator[Any]:
    """Yield the steps themselves, without the pipelines and searches around them; `choices` collects what these chose.

    A search with one setting has no choice.
    """
    if isinstance(steps, BaseSearchCV):
        name, steps, tried = type(steps).__name__, [_best(steps)], len(steps.cv_results_["params"])
        if tried > 1:
            choices.append(f"{name} chose between {tried} settings by scores on the records, without budget.")
    if isinstance(steps, Pipeline | FeatureUnion | ColumnTransformer):
        choices += _chosen_columns(steps)
        steps = _members(steps)
    elif isinstance(steps, Statement) or hasattr(steps, "fit") or callable(getattr(steps, "statement", None)):
        yield steps
        held = find_held(steps) if _statement(steps) is None else []
        for estimator in held:
            yield from _parts(estimator, choices)
        return
    elif not isinstance(steps, Iterable) or isinstance(steps, str):
        raise ValueError(
            "steps must be a pipeline, a search, a statement, an engine or a list of fitted steps, got "
            f"{_type_names([steps])}."
        )
    for step in steps:
        if not isinstance(step, str) and step is not None:  # "passthrough" and "drop" learn nothing
            yield from _parts(step, choices)


def _best(search: BaseSearchCV) -> BaseEstimator:
    if not hasattr(search, "best_estimator_"):
        raise ValueError("steps must be fitted, and a search with refit=True, got one without a best_estimator_.")
    return search.best_estimator_


def _type_names(parts: list[Any]) -> str:
    """List the types of steps for a message."""
    return ", ".join(type(part).__name__ for part in parts) or "none"


def _chosen_columns(steps: Any) -> Iterator[str]:
    """Yield a sentence for each function that saw the records when it chose columns."""
    for name, _, columns in steps.transformers if isinstance(steps, ColumnTransformer) else ():
        if callable(columns) and not _selects_by_name(columns):
            yield f"ColumnTransformer: the columns of {name!r} were chosen by a function of the records: name them."


def _selects_by_name(columns: Any) -> bool:
    """Return whether names alone choose the columns: one gap or text in the records can change the type of a column."""
    if type(columns) is not make_column_selector:
        return False
    return columns.dtype_include is None and columns.dtype_exclude is None


def _members(steps: Any) -> list[Any]:
    if isinstance(steps, Pipeline):
        return [step for _, step in steps.steps]
    if isinstance(steps, FeatureUnion):
        return [step for _, step in steps.transformer_list]
    return [step for _, step, _ in steps.transformers_]
