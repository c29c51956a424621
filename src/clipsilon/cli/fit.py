"""`clipsilon fit` and `clipsilon predict`: from a user's file to a private model, its quality, and its predictions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, r2_score, roc_auc_score
from sklearn.pipeline import Pipeline

from clipsilon._core import checks
from clipsilon.cli.columns import column_names, finite, read_columns
from clipsilon.cli.tables import Table, read_features, read_table, real_labels
from clipsilon.estimators import PrivateScaler, TotalPrivacy, total_privacy
from clipsilon.estimators import methods as estimator_methods
from clipsilon.estimators import model_files as models
from clipsilon.estimators.methods import Budget, Choices
from clipsilon.estimators.model_files import Model
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.certificate import ADJACENCIES
from clipsilon.privacy.statement import Statement, account

Array = NDArray[np.float64]
Tell = Callable[[str], object]

MODELS = ("logistic", "linear", "huber")
METHODS = tuple(name for name in estimator_methods.METHODS if "ldp" not in name)  # those need other losses
SHARE = 0.1  # of δ, and of ε unless told otherwise, for learning the scales of columns
_SAFE = 1 - 1e-9  # of what the model may spend, so that no rounding takes the total above what was asked for

QUALITY_WARNING = (
    "Not private: these numbers are computed from the held-out rows without noise, and the statement below covers the "
    "rows that trained the model only. Show them to nobody who may not see those rows; they are not in the model file."
)
SEEDED = "A seed makes the noise repeatable: this model is for trying out, and not for release."
_OPTIONS = {"classes=": "--classes", "target_range=": "--target-range"}  # words of the estimators and of the command


@dataclass(frozen=True)
class Request:
    """What a user asks `clipsilon fit` for; wrong settings are refused before any file is read."""

    path: Path
    target: str
    epsilon: float
    delta: float = 1e-5
    model: str | None = None  # None: logistic for two values
    method: str = "dpsgd"
    adjacency: str = "zero-out"
    l2: float = 0.0
    classes: Sequence[str] | None = None
    target_range: Sequence[float] | None = None
    ignore: Sequence[str] = ()
    scale_epsilon: float | None = None  # None: a share of epsilon
    bounds: Path | None = None
    as_is: bool = False
    holdout: float = 0.2
    seed: int | None = None

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.open_fraction("delta", self.delta)
        checks.nonnegative("l2", self.l2)
        checks.fraction("holdout", self.holdout)
        checks.choice("method", self.method, dict.fromkeys(METHODS))
        checks.choice("adjacency", self.adjacency, ADJACENCIES)
        if self.seed is not None:
            checks.integer("seed", self.seed, least=0)
        self._check_model()
        self._check_scaling()

    def _check_model(self) -> None:
        if self.model is not None:
            checks.choice("model", self.model, dict.fromkeys(MODELS))
        if self.classes is not None and (self.target_range is not None or self.model in ("linear", "huber")):
            raise ValueError("classes must be left out for a target of numbers, which has a target range instead.")
        if self.target_range is not None and self.model == "logistic":
            raise ValueError("target range must be left out for model 'logistic', which has classes instead.")
        if self.target_range is not None and not _is_range(self.target_range):
            given = ", ".join(f"{number:g}" for number in self.target_range)
            raise ValueError(f"target range must be a low and a high number, in this order, got {given}.")
        if self.classes is not None and len(set(self.classes)) < 2:
            raise ValueError(f"classes must be two different labels or more, got {', '.join(self.classes)!r}.")

    def _check_scaling(self) -> None:
        if (self.scale_epsilon is not None) + (self.bounds is not None) + self.as_is > 1:
            raise ValueError("columns must be scaled in one way: by an epsilon, by bounds, or left as they are.")
        if self.scale_epsilon is not None and checks.positive("scale epsilon", self.scale_epsilon) >= self.epsilon:
            raise ValueError(f"scale epsilon must be below epsilon ({self.epsilon:g}), got {self.scale_epsilon!r}.")


def _is_range(numbers: Sequence[float]) -> bool:
    return len(numbers) == 2 and bool(np.isfinite(numbers).all()) and numbers[0] < numbers[1]


class Measure(NamedTuple):
    """One line of the quality table."""

    name: str
    model: float  # NaN where the held-out rows cannot tell
    baseline: float


class Fit(NamedTuple):
    """A private model, and what there is to say about it."""

    model: Model
    total: TotalPrivacy
    statements: tuple[Statement, ...]
    quality: tuple[Measure, ...]  # empty if no rows were held out
    baseline: str  # what the model is compared with
    trained: int  # rows
    held_out: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All but the model itself, as JSON has it."""
        return {
            "model": self.model.kind,
            "target": self.model.target,
            "columns": list(self.model.columns),
            "trained_rows": self.trained,
            "held_out_rows": self.held_out,
            "quality_not_private": [
                {"measure": name, "model": _or_none(value), "baseline": _or_none(other)}
                for name, value, other in self.quality
            ],
            "baseline": self.baseline,
            "privacy": self.total._asdict(),
            "statements": [statement.to_dict() for statement in self.statements],
            "notes": list(self.notes),
        }


class Outcome(NamedTuple):
    """The target as a model takes it."""

    kind: str
    labels: NDArray[Any]
    known: dict[str, Any]  # what the user told about it, as the estimator's settings


def fit_file(request: Request, tell: Tell = lambda text: None, progress: bool | None = None) -> Fit:
    """Hold rows out, scale and fit within (ε, δ) together, and measure the model on the held-out rows."""
    tell(f"Reading {request.path}…")
    table = read_table(request.path, request.target, request.ignore)
    outcome = _outcome(request, table)
    seeds = [None] * 3 if request.seed is None else np.random.SeedSequence(request.seed).generate_state(3).tolist()
    train, held = split(len(outcome.labels), request.holdout, seeds[0])
    _check_sides(request, outcome, train, held)
    notes: list[str] = []
    with _heard(notes):
        features, scalers = _scaled(request, table, train, seeds[1], tell)
        estimator = _estimator(request, outcome.kind, scalers, *features.shape)
        estimator.set_params(random_state=seeds[2], progress=progress, **outcome.known)
        tell(f"Training on {len(train)} rows and {len(table.columns)} columns…")
        estimator.fit(features, outcome.labels[train])
    pipeline = Pipeline([*scalers, ("model", estimator)])
    model = Model(outcome.kind, pipeline, table.columns, request.target, seeded=request.seed is not None)
    quality = _quality(model, table.features[held], outcome.labels[held]) if held.size else ()
    about = _baseline(outcome, held), len(train), len(held), (*_notes(request, model, len(train)), *notes)
    statements = tuple(step.statement_ for _, step in model.pipeline.steps)
    return Fit(model, _total(request, model), statements, quality, *about)


def split(records: int, holdout: float, seed: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which rows train and which are held out: a draw that looks at no row."""
    held = round(holdout * records)
    if held == records or (holdout > 0 and held == 0):
        raise ValueError(f"holdout must leave rows to train on and rows to measure, got {holdout:g} of {records} rows.")
    order = np.random.default_rng(seed).permutation(records)
    return np.sort(order[held:]), np.sort(order[:held])


# -- the target -----------------------------------------------------------------------------------------------------


def _outcome(request: Request, table: Table) -> Outcome:
    kind = request.model or _natural_kind(request, table)
    if kind != "logistic":
        known = {} if request.target_range is None else {"target_range": tuple(request.target_range)}
        return Outcome(kind, real_labels(table), known)
    labels = _whole(table.target)
    if labels.dtype.kind == "f":
        raise ValueError(
            f"target {table.target_name!r} must hold classes for model 'logistic', got the number "
            f"{labels[labels != np.rint(labels)][0]:g}: use model 'linear' or 'huber'."
        )
    return Outcome(kind, labels, {} if request.classes is None else {"classes": _classes(request, labels)})


def _natural_kind(request: Request, table: Table) -> str:
    """The model that fits what the user told, or two values of the target."""
    if request.target_range is not None:
        return "linear"
    several = np.unique(table.target).size
    if request.classes is None and several > 2:
        raise ValueError(
            f"model must be chosen for a target of more than two values, got none for {table.target_name!r} with "
            f"{several}: logistic (classes), linear or huber (numbers)."
        )
    return "logistic"


def _whole(target: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers as such; anything else as it is."""
    whole = target.dtype.kind == "f" and (np.abs(target) < 2**53).all() and (target == np.rint(target)).all()
    return target.astype(np.int64) if whole else target


def _classes(request: Request, labels: NDArray[Any]) -> list[Any]:
    """The classes that the user told, in the target's own kind."""
    told: Any = list(request.classes or ())
    if labels.dtype.kind == "i":
        numbers = finite(told)
        if numbers is None:
            raise ValueError(f"classes must be numbers, as target {request.target!r} is, got {', '.join(told)!r}.")
        told = _whole(numbers).tolist()
    strange = labels[~np.isin(labels, told)]
    if strange.size:
        named = ", ".join(map(str, told))
        raise ValueError(f"target {request.target!r} must hold the classes {named} only, got {strange[0]!s}.")
    return list(told)


def _check_sides(request: Request, outcome: Outcome, train: Any, held: Any) -> None:
    """Refuse classes that would be learnt, but cannot be, from the rows that train."""
    if outcome.kind != "logistic" or outcome.known:
        return
    seen, others = np.unique(outcome.labels[train]), np.unique(outcome.labels[held])
    unseen = np.setdiff1d(others, seen)
    if unseen.size:
        raise ValueError(
            f"target {request.target!r} must have every class among the rows that train, got {unseen[0]!s} among the "
            "held-out ones only: name the classes."
        )


# -- the fit --------------------------------------------------------------------------------------------------------


def _scaled(
    request: Request, table: Table, train: Any, seed: int | None, tell: Tell
) -> tuple[Array, list[tuple[str, Any]]]:
    """The rows that train, with columns of unit order, and the step that did it."""
    if request.as_is:
        return table.features[train], []
    bounds = None if request.bounds is None else read_bounds(request.bounds, table.columns)
    epsilon = None if bounds else (request.scale_epsilon or SHARE * request.epsilon)
    tell("Scaling the columns by their bounds…" if bounds else "Learning the scales of the columns…")
    scaler = PrivateScaler(epsilon, SHARE * request.delta, bounds, request.adjacency, seed)
    with _heard([]):  # it numbers the columns that it could not learn: `_notes` names them
        scaled = scaler.fit_transform(table.features[train])
    if epsilon is not None and scaler.statement_.certified == 0:  # which hangs on public numbers only
        raise ValueError(
            f"FILE must have more than {len(train)} rows that train, to learn the scales of {len(table.columns)} "
            f"column(s) at ε = {epsilon:g}; else give --bounds, --as-is or a larger --scale-epsilon."
        )
    return scaled, [("scaler", scaler)]


def _estimator(request: Request, kind: str, scalers: list[tuple[str, Any]], records: int, columns: int) -> Any:
    """The estimator with what the scaler left of the budget."""
    whole = Budget(request.epsilon, request.delta, request.adjacency)
    spent = [scaler.statement_ for _, scaler in scalers]
    budget = remaining(whole, spent[0], kind, request.method, records, columns) if spent else whole
    return models.new_estimator(kind, **budget._asdict(), method=request.method, l2=request.l2)


def remaining(whole: Budget, spent: Statement, kind: str, method: str, records: int, columns: int) -> Budget:
    """What a model may spend after a scaler such that both together stay within the whole.

    If the model is Gaussian as the scaler is, squares of μ add up, and little is lost. Else ε and δ add up.
    """
    profile = spent.certificate.profile
    shift = 0.0 if profile is None or profile.mu is None else profile.mu
    delta = whole.delta - spent.delta
    left = gaussian.largest_mu(whole.epsilon, whole.delta) ** 2 - shift**2
    if left > 0:
        generous = whole._replace(epsilon=_SAFE * gaussian.epsilon(sqrt(left), delta), delta=delta)
        if generous.epsilon > 0 and _is_gaussian(generous, kind, method, records, columns):
            return generous
    return whole._replace(epsilon=_SAFE * (whole.epsilon - spent.certified), delta=delta)


def _is_gaussian(budget: Budget, kind: str, method: str, records: int, columns: int) -> bool:
    """Whether the certificate of a method is, as the estimators will run it: with a column of ones."""
    loss = "logistic" if kind == "logistic" else "squared"
    plan = estimator_methods.plan(method, Choices(), budget, records, columns + 1, loss)
    profile = account(plan.rule, records, plan.all_steps, budget.delta, budget.adjacency).certificate.profile
    return profile is not None and profile.mu is not None


def _total(request: Request, model: Model) -> TotalPrivacy:
    """What was spent; never more than was asked for."""
    with _heard([]):  # the estimators have told already
        total = total_privacy(model.pipeline, request.delta)
    if not total.epsilon <= request.epsilon:
        raise RuntimeError(f"The fit spent ε = {total.epsilon!r} of {request.epsilon!r}: please report this.")
    return total


@contextmanager
def _heard(notes: list[str]) -> Iterator[None]:
    """Take the warnings of the estimators down as notes, in the words of the command."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        text = str(warning.message)
        for word, option in _OPTIONS.items():
            text = text.replace(word, option)
        notes.append(text)


def _notes(request: Request, model: Model, trained: int) -> list[str]:
    notes = [SEEDED] if model.seeded else []
    if request.delta * trained >= 1:
        notes.append(f"δ = {request.delta:g} is no less than 1 in {trained} rows: it could give some row away whole.")
    learnt = model.pipeline[0].learnt_ if len(model.pipeline) > 1 else ()
    hidden = [name for name, told in zip(model.columns, learnt, strict=False) if not told]
    if hidden:
        notes.append(
            f"Noise hid the scale of {', '.join(hidden)}: more rows, a larger --scale-epsilon or --bounds would help."
        )
    return notes


# -- quality --------------------------------------------------------------------------------------------------------


def _quality(model: Model, features: Array, labels: NDArray[Any]) -> tuple[Measure, ...]:
    """The model on held-out rows, beside the best constant for these rows."""
    if model.kind == "logistic":
        return _of_classes(model.pipeline, features, labels)
    predicted, mean = model.pipeline.predict(features), np.full(len(labels), labels.mean())
    varies = np.ptp(labels) > 0
    return (
        Measure("R²", r2_score(labels, predicted) if varies else np.nan, 0.0 if varies else np.nan),
        Measure("mean absolute error", mean_absolute_error(labels, predicted), mean_absolute_error(labels, mean)),
    )


def _of_classes(pipeline: Pipeline, features: Array, labels: NDArray[Any]) -> tuple[Measure, ...]:
    classes, chances = pipeline.classes_, pipeline.predict_proba(features)
    shares = np.array([np.mean(labels == label) for label in classes])
    constant = np.tile(shares, (len(labels), 1))
    accuracy = accuracy_score(labels, pipeline.predict(features))
    auc = np.nan
    if (shares > 0).all():
        scores = chances[:, 1] if len(classes) == 2 else chances
        auc = roc_auc_score(labels, scores, multi_class="ovr", labels=classes)
    return (
        Measure("accuracy", accuracy, float(shares.max())),
        Measure("AUC", auc, 0.5 if isfinite(auc) else np.nan),
        Measure("log loss", log_loss(labels, chances, labels=classes), log_loss(labels, constant, labels=classes)),
    )


def _baseline(outcome: Outcome, held: Any) -> str:
    """What the constant is that the model is compared with."""
    if not held.size:
        return ""
    if outcome.kind != "logistic":
        return "always their mean"
    values, counts = np.unique(outcome.labels[held], return_counts=True)
    return f"always {values[counts.argmax()]!s}"


def _or_none(value: float) -> float | None:
    return float(value) if isfinite(value) else None


# -- other files ----------------------------------------------------------------------------------------------------


def read_bounds(path: Path, columns: Sequence[str]) -> tuple[list[float], list[float]]:
    """Public bounds from a file with the columns column, low and high, and a row for each feature."""
    names = column_names(path)
    for name in ("column", "low", "high"):
        if name not in names:
            raise ValueError(f"bounds in {path} must have the columns column, low and high, got {', '.join(names)}.")
    found = read_columns(path, ("column", "low", "high"), as_text="column")
    low, high, named = found["low"].numbers, found["high"].numbers, found["column"].text
    if low is None or high is None or named is None:
        raise ValueError(f"bounds in {path} must name columns, with finite numbers as low and high.")
    bounds = {name: (a, b) for name, a, b in zip(named.tolist(), low.tolist(), high.tolist(), strict=True)}
    for name in columns:
        if name not in bounds:
            raise ValueError(f"bounds in {path} must have a row for every feature, got none for {name!r}.")
        if not bounds[name][0] < bounds[name][1]:
            raise ValueError(f"bounds of column {name!r} must have low below high, got {bounds[name]}.")
    return [bounds[name][0] for name in columns], [bounds[name][1] for name in columns]


def predictions(path: Path, data: Path) -> Iterator[Sequence[Any]]:
    """A header, and then for each row of the data the prediction and, from a classifier, the chance of each class."""
    model = models.read_model(path)
    features = read_features(data, model.columns)
    predicted = model.pipeline.predict(features).tolist()
    if model.kind != "logistic":
        yield ("prediction",)
        yield from zip(predicted, strict=True)
        return
    yield ("prediction", *(f"P({label})" for label in model.pipeline.classes_))
    for label, chances in zip(predicted, model.pipeline.predict_proba(features).tolist(), strict=True):
        yield (label, *chances)
