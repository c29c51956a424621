"""The work of `clipsilon fit`: read a file, hold rows out, scale and fit within a budget, and evaluate the model."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon.cli.encoded_tables import read_encoded
from clipsilon.cli.fit_request import NO_GROUP, Request
from clipsilon.cli.model_kinds import predicts_classes
from clipsilon.cli.tables import Table, read_bounds, read_table
from clipsilon.cli.target_column import Target, check_split, read_target
from clipsilon.privacy.statement import Statement, fail_closed, point_statement
from clipsilon.privacy.warning import warn_about_delta
from clipsilon.tables.schema import Schema

if TYPE_CHECKING:  # scikit-learn is slow to import, and the help does not need it
    from sklearn.pipeline import Pipeline

    from clipsilon.cli.quality import Measure
    from clipsilon.estimators import PrivateScaler, TotalPrivacy
    from clipsilon.estimators.evaluation import PrivateScores
    from clipsilon.estimators.model_files import Model

Array = NDArray[np.float64]
Tell = Callable[[str], object]

SCALE_FRACTION = 0.1  # of δ, and by default of ε, for learning the scales of the columns
_PROPOSED = (
    "The schema's ranges and levels were proposed from the rows without noise: check them, and delete its entry "
    "proposed."
)
# Arguments of the estimators, and the options that stand for them.
_OPTIONS = {
    "classes=": "--classes",
    "target_range=": "--target-range",
    "Leave random_state at None": "Leave --seed out",
    "Pass it as groups= and leave it out of the features": "Name it with --group",
}


class Fit(NamedTuple):
    """A private model and its report.

    Parameters
    ----------
    model : Model
        The fitted model.
    total : TotalPrivacy
        What scaling and training cost together.
    statements : tuple of Statement
        The privacy statements of the scaler, if there is one, and of the model.
    quality : tuple of Measure
        Measures on the held-out rows, not private; empty if no rows were held out, or if there are `scores`.
    scores : PrivateScores or None
        The private evaluation on the held-out rows, if one was requested.
    baseline : str
        The constant that the model is compared with.
    trained, held_out : int
        Numbers of rows, or of people if a column names them: then the number of rows is not public.
    notes : tuple of str
        What the user should know: what was learnt without budget, for instance.
    uncovered : tuple of str
        How many rows the schema does not cover, counted without noise.
    """

    model: Model
    total: TotalPrivacy
    statements: tuple[Statement, ...]
    quality: tuple[Measure, ...]
    scores: PrivateScores | None
    baseline: str
    trained: int
    held_out: int
    notes: tuple[str, ...]
    uncovered: tuple[str, ...]

    @property
    def counted(self) -> str:
        """What `trained` and `held_out` count: "rows" or "people"."""
        return "rows" if self.total.unit == "record" else "people"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model itself, ready for JSON."""
        return {
            "model": self.model.kind,
            "target": self.model.target,
            "columns": list(self.model.columns),
            f"trained_{self.counted}": self.trained,
            f"held_out_{self.counted}": self.held_out,
            "quality_not_private": [
                {"measure": name, "model": _or_none(value), "baseline": _or_none(other)}
                for name, value, other in self.quality
            ],
            "baseline": self.baseline,
            "evaluation": None if self.scores is None else self.scores.to_dict(),
            "privacy": self.total.to_dict(),
            "statements": [statement.to_dict() for statement in self.statements],
            "notes": list(self.notes),
            "notes_not_private": list(self.uncovered),
        }


def fit_file(request: Request, tell: Tell = lambda text: None, progress: bool | None = None) -> Fit:
    """Hold rows out, scale and fit within (ε, δ) in total, and evaluate the model on the held-out rows.

    Parameters
    ----------
    request : Request
        What to fit.
    tell : callable, optional
        Called with a sentence before each stage.
    progress : bool or None, default None
        Whether to show the progress of training; None does so in a terminal.

    Returns
    -------
    Fit
    """
    from sklearn.pipeline import Pipeline

    from clipsilon.cli.quality import describe_baseline
    from clipsilon.estimators.model_files import Model

    tell(f"Reading {request.path}…")
    table = _read(request)
    target = read_target(table, request.model, request.classes, request.target_range)
    seeds = [None] * 4 if request.seed is None else np.random.SeedSequence(request.seed).generate_state(4).tolist()
    train, held = _split(table.people, len(target.labels), request.holdout, seeds[0])
    check_split(target, request.target, train, held)
    notes: list[str] = []
    groups = None if table.people is None else table.people[train]
    records, others = (_count(table.people, some) for some in (train, held))
    scalers = _new_scalers(request, table, records, seeds[1])
    _charge(request, target, table, train, seeds[2])
    with _collect_warnings(notes):
        features = _scaled(scalers, table.features[train], groups, tell)
        estimator = _estimator(request, target, scalers, records, features.shape[1], seeds[2], progress)
        tell(f"Training on {records} {'rows' if groups is None else 'people'} and {len(table.columns)} columns…")
        estimator.fit(features, target.labels[train], groups=groups)
        estimator.statement_ = _about_schema(estimator.statement_, table)
        encoders = [] if table.encoder is None else [("schema", table.encoder)]
        pipeline = Pipeline([*encoders, *(("scaler", scaler) for scaler in scalers), ("model", estimator)])
        model = Model(target.kind, pipeline, table.columns, request.target, seeded=request.seed is not None)
        scores = _evaluate(request, model.learnt, table, target, held, seeds[3])
    shown = held if scores is None else held[:0]
    return Fit(
        model,
        _total(request, model),
        statements=tuple(step.statement_ for _, step in model.learnt.steps),
        quality=_quality(model, table.features[shown], target.labels[shown]) if shown.size else (),
        scores=scores,
        baseline=describe_baseline(target.kind, target.labels[shown]),
        trained=records,
        held_out=others,
        notes=tuple(dict.fromkeys((*_notes(request, model, table), *notes))),
        uncovered=table.notes,
    )


def _read(request: Request) -> Table:
    """Read the file by its schema, or as numbers; without a schema, name the command that proposes one."""
    if request.schema is None:
        named = [] if request.group is None else ["--group", request.group]
        words = [
            "clipsilon",
            "schema",
            str(request.path),
            "--target",
            request.target,
            *named,
            "--output",
            "schema.toml",
        ]
        proposal = shlex.join(words)
        advice = f"leave them out with --ignore, or describe the table by a schema ({proposal}) and give it by --schema"
        return read_table(request.path, request.target, request.ignore, advice, request.group)
    schema = Schema.load(request.schema)
    if schema.target not in (None, request.target):
        raise ValueError(f"target must be {schema.target!r}, as in {request.schema}, got {request.target!r}.")
    if request.group is not None:
        if schema.group not in (None, request.group):
            raise ValueError(f"group must be {schema.group!r}, as in {request.schema}, got {request.group!r}.")
        schema = replace(schema, group=request.group, ignore=[name for name in schema.ignore if name != request.group])
    if request.max_rows is not None and schema.group is None:
        raise ValueError(NO_GROUP)
    return read_encoded(request.path, replace(schema, target=request.target), request.target)


def _quality(model: Model, features: Array, labels: NDArray[Any]) -> tuple[Measure, ...]:
    """Evaluate the steps that take numbers: the features are encoded already."""
    from clipsilon.cli.quality import measure_quality

    return measure_quality(model._replace(pipeline=model.learnt), features, labels)


def _split(
    people: NDArray[np.int64] | None, rows: int, holdout: float, seed: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw which rows train and which are held out; all rows of a person do the same."""
    if people is None:
        return split(rows, holdout, seed)
    train, held = split(int(people.max()) + 1, holdout, seed)
    return np.flatnonzero(np.isin(people, train)), np.flatnonzero(np.isin(people, held))


def _count(people: NDArray[np.int64] | None, rows: NDArray[np.int64]) -> int:
    """Return the number of these rows, or of their people."""
    return len(rows) if people is None else int(np.unique(people[rows]).size)


def split(records: int, holdout: float, seed: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw which rows train and which are held out, without looking at any row.

    Parameters
    ----------
    records : int
        Number of rows.
    holdout : float
        Fraction of the rows to hold out, in [0, 1).
    seed : int or None
        Seed of the draw; None takes one from the operating system.

    Returns
    -------
    train, held_out : array of int
        Sorted row numbers.
    """
    held = round(holdout * records)
    if held == records or (holdout > 0 and held == 0):
        raise ValueError(
            f"holdout must leave rows for training and rows for evaluation, got {holdout:g} of {records} rows."
        )
    order = np.random.default_rng(seed).permutation(records)
    return np.sort(order[held:]), np.sort(order[:held])


def _charge(request: Request, target: Target, table: Table, train: NDArray[np.int64], seed: int | None) -> None:
    """Charge the whole fit to the budget file: scaling and training together, or evaluation if that is more.

    Scaling and training never exceed the requested ε and δ, and who is held out is evaluated but does not train. What
    prevents a certificate of the model is found by planning it, before anything is charged.
    """
    from clipsilon.estimators.seen_rows import identify_rows
    from clipsilon.privacy.budget import charge_to

    if request.budget is None:
        return
    groups = None if table.people is None else table.people[train]
    model = _estimator(request, target, [], len(train), table.features.shape[1], random_state=seed)
    with _collect_warnings([]):  # the fit repeats them
        planned = model.plan_statement(table.features[train], target.labels[train], groups)
    epsilon = max(request.epsilon, request.evaluate_epsilon or 0.0)
    stated = point_statement("fit", planned.records, epsilon, request.delta, request.adjacency, planned.unit)
    for fault in reversed(planned.faults):
        stated = fail_closed(stated, fault)
    needed = "classes" if predicts_classes(target.kind) else "target_range"
    if target.settings.get(needed) is None:
        stated = fail_closed(stated, f"Learnt without budget unless --{needed.replace('_', '-')} is given.")
    stated = _about_schema(stated, table)
    charge_to(request.budget, stated, lambda key: identify_rows(table.features, key))


def _about_schema(statement: Statement, table: Table) -> Statement:
    """Certify nothing if the schema was proposed from the rows, and nobody has checked it."""
    is_proposed = table.encoder is not None and table.encoder.schema.proposed
    return fail_closed(statement, _PROPOSED) if is_proposed else statement


def _new_scalers(request: Request, table: Table, records: int, seed: int | None) -> list[PrivateScaler]:
    """Return the scaler, if one is needed; raise ValueError if its budget would not suffice to learn anything."""
    from clipsilon.estimators import PrivateScaler

    if request.as_is or table.encoder is not None:
        return []
    bounds = None if request.bounds is None else read_bounds(request.bounds, table.columns)
    epsilon = None if bounds else (request.scale_epsilon or SCALE_FRACTION * request.epsilon)
    scaler = PrivateScaler(epsilon, SCALE_FRACTION * request.delta, bounds, request.adjacency, seed)
    if epsilon is not None and not scaler.can_learn(records, len(table.columns)):
        known = f"{records} training rows" if table.people is None else f"{records} people"
        raise ValueError(
            f"FILE must have more than {known} to learn the scales of {len(table.columns)} "
            f"column(s) at ε = {epsilon:g}; otherwise give --bounds, --as-is or a larger --scale-epsilon."
        )
    return [scaler]


def _scaled(scalers: list[PrivateScaler], features: Array, groups: NDArray[np.int64] | None, tell: Tell) -> Array:
    """Return the training rows with columns of unit order."""
    for scaler in scalers:
        tell("Scaling the columns by their bounds…" if scaler.bounds else "Learning the scales of the columns…")
        with _collect_warnings([]):  # they number the columns that could not be learnt: `_notes` names them
            features = scaler.fit(features, groups=groups).transform(features)
    return features


def _estimator(
    request: Request,
    target: Target,
    scalers: list[PrivateScaler],
    records: int,
    columns: int,
    random_state: int | None,
    progress: bool | None = None,
) -> Any:
    """Return the estimator with the budget that the scaler left."""
    from clipsilon.cli.budgets import remaining
    from clipsilon.estimators import model_files
    from clipsilon.estimators.methods import Budget

    budget = Budget(request.epsilon, request.delta, request.adjacency)
    for scaler in scalers:
        budget = remaining(budget, scaler.statement_, target.kind, request.method, records, columns)
    about = {"method": request.method, "l2": request.l2, **target.settings}
    if request.quantile is not None:
        about["quantile"] = request.quantile
    chosen = {} if request.max_rows is None else {"max_rows": request.max_rows}
    estimator = model_files.new_estimator(target.kind, **budget._asdict(), **about)
    return estimator.set_params(random_state=random_state, progress=progress, **chosen)


def _evaluate(
    request: Request, pipeline: Pipeline, table: Table, target: Target, held: NDArray[np.int64], seed: int | None
) -> PrivateScores | None:
    """Evaluate the model privately if requested; `_split` drew who is held out, with all rows."""
    from clipsilon.estimators.evaluation import private_scores

    if request.evaluate_epsilon is None:
        return None
    scores = private_scores(
        pipeline,
        table.features[held],
        target.labels[held],
        request.evaluate_epsilon,
        request.delta,
        groups=None if table.people is None else table.people[held],
        random_state=seed,
    )
    # The split is known, so equal rows are no reason for a note.
    return replace(scores, held_out=True, statement=_about_schema(scores.statement, table))


def _total(request: Request, model: Model) -> TotalPrivacy:
    """Return what was spent, which never exceeds the requested budget, whatever prevents a certificate."""
    from clipsilon.estimators import total_privacy

    with _collect_warnings([]):  # repeats those of the fit
        total = total_privacy(model.pipeline, request.delta)
    if not total.nominal <= request.epsilon:
        raise RuntimeError(f"The fit spent ε = {total.nominal!r} of {request.epsilon!r}: please report this.")
    return total


@contextmanager
def _collect_warnings(notes: list[str]) -> Iterator[None]:
    """Append the warnings of the estimators to `notes`, with the names of our options in place of their arguments."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        text = str(warning.message)
        for argument, option in _OPTIONS.items():
            text = text.replace(argument, option)
        notes.append(text)


def _notes(request: Request, model: Model, table: Table) -> list[str]:
    from clipsilon.estimators.people import advise_groups, find_repeated_ids

    notes: list[str] = []
    stated = model.pipeline[-1].statement_
    encoded = table.people is not None or table.encoder is not None
    columns = {} if encoded else dict(zip(table.columns, table.features.T, strict=True))
    with _collect_warnings(notes):
        warn_about_delta(request.delta, stated.records, unit=stated.unit)
        for name in find_repeated_ids(columns):
            warnings.warn(advise_groups(name), UserWarning, stacklevel=2)
    learnt = getattr(model.pipeline[0], "learnt_", ())
    hidden = [name for name, is_learnt in zip(model.columns, learnt, strict=False) if not is_learnt]
    if hidden:
        notes.append(
            f"Noise hid the scale of {', '.join(hidden)}: more rows, a larger --scale-epsilon or --bounds would help."
        )
    return notes


def _or_none(value: float) -> float | None:
    return float(value) if isfinite(value) else None
