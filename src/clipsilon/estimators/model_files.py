"""Model files: write a fitted private model as readable JSON, and restore it.

A file holds only what may be released: the model, its settings and its statements. It holds no seed, and nothing that
was measured without noise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clipsilon._core import checks
from clipsilon._core.storage import write_atomically
from clipsilon.privacy.accounting import profiles
from clipsilon.privacy.certificate import ADJACENCIES, Certificate
from clipsilon.privacy.statement import SEEDED, Statement, fail_closed
from clipsilon.privacy.warning import UNITS
from clipsilon.tables.schema import Schema
from clipsilon.version import __version__

if TYPE_CHECKING:  # scikit-learn takes long to load, so it is imported where it is used
    from sklearn.pipeline import Pipeline

    from clipsilon.estimators import PrivateLinearRegression, PrivateLogisticRegression, PrivateScaler, TotalPrivacy
    from clipsilon.tables import SchemaEncoder

FORMAT = "clipsilon model"
_READABLE = (FORMAT, "clipwise model")  # the second is this project's former name
VERSION = 1


class Model(NamedTuple):
    """A fitted pipeline, and the columns that it takes.

    Parameters
    ----------
    kind : str
        "logistic", "linear", "huber", "poisson", "gamma" or "quantile".
    pipeline : Pipeline
        The steps "schema" or "scaler", unless columns are taken as they are, and "model".
    columns : tuple of str
        The names of the columns of a table that are used, in their order.
    target : str
        The name of the target.
    seeded : bool
        Whether the noise is repeatable, and can therefore be removed.
    """

    kind: str
    pipeline: Pipeline
    columns: tuple[str, ...]
    target: str
    seeded: bool

    @property
    def schema(self) -> Schema | None:
        """What the columns hold; None if they are all numbers."""
        return self.pipeline[0].schema if "schema" in self.pipeline.named_steps else None

    @property
    def learnt(self) -> Pipeline:
        """The steps that take numbers: all but the encoding of the columns."""
        return self.pipeline[1:] if "schema" in self.pipeline.named_steps else self.pipeline


def load_model(path: str | Path) -> Pipeline:
    """Load a model that `clipsilon fit` wrote, as a fitted scikit-learn pipeline.

    Data frames must have the columns that it was fitted to, in their order; with a schema, in any order, beside others,
    with text and gaps as in the file. `named_steps["model"].statement_` is the
    statement of the fit, closed if the fit was seeded; of a certificate that is not Gaussian, only ε at the requested δ
    is restored.
    """
    model = read_model(path)
    model.pipeline.steps[0][1].feature_names_in_ = np.array(model.columns, dtype=object)
    return model.pipeline


def write_model(path: Path, model: Model, total: TotalPrivacy) -> None:
    """Write a model file atomically.

    Parameters
    ----------
    path : Path
        The file to write; replaced if it exists.
    model : Model
        The fitted model.
    total : TotalPrivacy
        What all its steps spent.
    """
    steps = model.pipeline.named_steps
    content = {
        "format": FORMAT,
        "version": VERSION,
        "written_by": f"clipsilon {__version__}",
        "seeded": model.seeded,
        "privacy": total.to_dict(),
        "target": model.target,
        "columns": list(model.columns),
        "schema": None if model.schema is None else model.schema.to_dict(),
        "scaling": _scaling(steps["scaler"]) if "scaler" in steps else None,
        "model": {"kind": model.kind, **_fitted(steps["model"])},
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, lambda file: file.write(f"{text}\n".encode()))


def read_model(path: str | Path) -> Model:
    """Read a model file, or raise ValueError if it is damaged or of another version."""
    path = checks.path("path", path)
    if not path.is_file():
        raise FileNotFoundError(f"path must name a file, got {path}, where there is none.")
    try:
        content = json.loads(path.read_bytes())
        known = content["format"] in _READABLE
    except (ValueError, KeyError, TypeError, RecursionError):
        known = False
    if not known:
        raise ValueError(f"path must be a model file of clipsilon, got {path}, which is not one, or not whole.")
    if content.get("version") != VERSION:
        raise ValueError(
            f"path must be a model file of version {VERSION}, got {path} of version {content.get('version')!r}: "
            "another version of clipsilon wrote it."
        )
    try:
        return _restored(content)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ValueError(f"path must be a whole model file, got {path}, which is damaged: {problem!r}.") from None


# -- to JSON --------------------------------------------------------------------------------------------------------


def _scaling(scaler: PrivateScaler) -> dict[str, Any]:
    bounds = scaler.bounds
    return {
        "settings": {
            "epsilon": scaler.epsilon,
            "delta": scaler.delta,
            "bounds": None if bounds is None else [np.asarray(end).tolist() for end in bounds],
            "adjacency": scaler.adjacency,
        },
        "center": scaler.center_.tolist(),
        "scale": scaler.scale_.tolist(),
        "learnt": scaler.learnt_.tolist(),
        "statement": _stated(scaler.statement_),
    }


_SETTINGS = ("epsilon", "delta", "method", "l2", "adjacency", "classes", "target_range", "quantile")


def _fitted(estimator: Any) -> dict[str, Any]:
    settings = {name: getattr(estimator, name) for name in _SETTINGS if hasattr(estimator, name)}
    found = {name: getattr(estimator, f"{name}_") for name in ("classes", "target_range") if name in settings}
    return {
        "settings": {name: _plain(value) for name, value in settings.items()},
        **{name: _plain(value) for name, value in found.items()},
        "coefficients": _plain(estimator.coef_),
        "intercept": _plain(estimator.intercept_),
        "steps": estimator.n_iter_,
        "statement": _stated(estimator.statement_),
    }


def _plain(value: Any) -> Any:
    """Convert arrays to lists and numbers."""
    return value if value is None or isinstance(value, str) else np.asarray(value).tolist()


def _stated(statement: Statement) -> dict[str, Any]:
    mended = statement if statement.mended is None else statement.mended
    mus = {"gaussian_mu": _mu(statement), "nominal_gaussian_mu": _mu(mended)}
    return {**statement.to_dict(), **mus}


def _mu(statement: Statement) -> float | None:
    profile = statement.certificate.profile
    return None if profile is None else profile.mu


# -- from JSON ------------------------------------------------------------------------------------------------------


def _restored(content: dict[str, Any]) -> Model:
    from sklearn.pipeline import Pipeline

    columns = tuple(content["columns"])
    if not columns or not all(isinstance(name, str) for name in (*columns, content["target"])):
        raise ValueError("columns must have names")
    kind, seeded = content["model"]["kind"], bool(content["seeded"])
    schema = None if content.get("schema") is None else Schema.from_dict(content["schema"])  # earlier files have none
    if schema is not None and columns != tuple(schema.columns):
        raise ValueError("columns must be those of the schema")
    features = len(columns) if schema is None else len(schema.feature_names())
    steps = [("model", _estimator(kind, content["model"], features))]
    if schema is not None:
        steps.insert(0, ("schema", _encoder(schema)))
    elif content["scaling"] is not None:
        steps.insert(0, ("scaler", _scaler(content["scaling"], len(columns))))
    for name, step in steps if seeded else ():  # files of earlier versions state a certified ε even then
        if name != "schema" and SEEDED not in step.statement_.faults:
            step.statement_ = fail_closed(step.statement_, SEEDED)
    return Model(kind, Pipeline(steps), columns, content["target"], seeded)


def _encoder(schema: Schema) -> SchemaEncoder:
    from clipsilon.tables.encoder import SchemaEncoder

    return SchemaEncoder(schema)


def _scaler(content: dict[str, Any], columns: int) -> PrivateScaler:
    from clipsilon.estimators import PrivateScaler

    scaler = PrivateScaler(**content["settings"])
    scaler.center_ = checks.vector("center", content["center"], columns)
    scaler.scale_ = checks.vector("scale", content["scale"], columns)
    if (scaler.scale_ <= 0).any():
        raise ValueError("scales must be above 0")
    scaler.learnt_ = checks.vector("learnt", content["learnt"], columns).astype(bool)
    scaler.n_features_in_ = columns
    scaler.statement_ = _statement(content["statement"])
    return scaler


def new_estimator(kind: str, **settings: Any) -> Any:
    """Make an unfitted estimator of a kind, such as "logistic"."""
    return checks.choice("model", kind, _KINDS).make(**settings)


def _estimator(kind: str, content: dict[str, Any], columns: int) -> Any:
    estimator = new_estimator(kind, **content["settings"])
    estimator.n_features_in_ = columns
    estimator.n_iter_ = checks.count("steps", content["steps"])
    _KINDS[kind].restore(estimator, content, columns)
    estimator.statement_ = _statement(content["statement"])
    return estimator


def _restore_classifier(estimator: Any, content: dict[str, Any], columns: int) -> None:
    classes = np.unique(content["classes"])
    if classes.tolist() != content["classes"] or classes.size < 2:
        raise ValueError("classes must be two or more, in order")
    rows = 1 if classes.size == 2 else classes.size
    coefficients = checks.vector("coefficients", np.ravel(content["coefficients"]), rows * columns)
    estimator.classes_, estimator.coef_ = classes, coefficients.reshape(rows, columns)
    estimator.intercept_ = checks.vector("intercept", content["intercept"], rows)
    estimator.theta_ = np.column_stack([estimator.coef_, estimator.intercept_]).ravel()


def _restore_regressor(estimator: Any, content: dict[str, Any], columns: int) -> None:
    low, high = checks.vector("target_range", content["target_range"], 2).tolist()
    estimator.target_range_ = low, high
    estimator.coef_ = checks.vector("coefficients", content["coefficients"], columns)
    estimator.intercept_ = np.float64(checks.number("intercept", content["intercept"]))
    origin, unit = estimator._margin_units()
    estimator.theta_ = np.append(estimator.coef_, estimator.intercept_ - origin) / unit  # as it was learnt


def _logistic(**settings: Any) -> PrivateLogisticRegression:
    from clipsilon.estimators import PrivateLogisticRegression

    return PrivateLogisticRegression(**settings)


def _linear(loss: str, **settings: Any) -> PrivateLinearRegression:
    from clipsilon.estimators import PrivateLinearRegression

    return PrivateLinearRegression(loss=loss, **settings)


def _regressor(name: str, **settings: Any) -> Any:
    from clipsilon import estimators

    return getattr(estimators, name)(**settings)


class _Kind(NamedTuple):
    """How the estimator of a kind of model is made, and restored from a file."""

    make: Callable[..., Any]
    restore: Callable[[Any, dict[str, Any], int], None]


_KINDS = {
    "logistic": _Kind(_logistic, _restore_classifier),
    "linear": _Kind(partial(_linear, "squared"), _restore_regressor),
    "huber": _Kind(partial(_linear, "huber"), _restore_regressor),
    "poisson": _Kind(partial(_regressor, "PrivatePoissonRegressor"), _restore_regressor),
    "gamma": _Kind(partial(_regressor, "PrivateGammaRegressor"), _restore_regressor),
    "quantile": _Kind(partial(_regressor, "PrivateQuantileRegressor"), _restore_regressor),
}


def _statement(content: dict[str, Any]) -> Statement:
    """Return the statement, closed by its faults; earlier versions wrote neither these nor nominal values."""
    reasons = tuple(map(str, content["reasons"]))
    learnt = [reason for reason in reasons if " without budget" in reason]
    faults = tuple(map(str, content.get("faults", learnt)))
    start = "nominal" if "nominal_epsilon" in content else "certified"
    mu = content["nominal_gaussian_mu" if start == "nominal" else "gaussian_mu"]
    open_reasons = tuple(reason for reason in reasons if reason not in faults)
    statement = _open_statement(content, content[f"{start}_epsilon"], mu, open_reasons)
    for fault in reversed(faults):
        statement = fail_closed(statement, fault)
    return replace(statement, reasons=reasons, claim_holds=content["claim_holds"])


def _open_statement(
    content: dict[str, Any], epsilon: float | None, mu: float | None, reasons: tuple[str, ...]
) -> Statement:
    certified = np.inf if epsilon is None else float(epsilon)
    profile = None
    if mu is not None:
        profile = profiles.gaussian(mu)
    elif np.isfinite(certified):
        profile = profiles.point(certified, content["delta"])
    return Statement(
        rule=content["rule"],
        records=content["records"],
        steps=content["steps"],
        delta=content["delta"],
        adjacency=checks.choice("adjacency", content["adjacency"], {name: name for name in ADJACENCIES}),
        certified=certified,
        claimed=content["claimed_epsilon"],
        claim_holds=content["claim_holds"],
        reasons=reasons,
        certificate=Certificate(profile, reasons),
        notes=tuple(map(str, content.get("notes", ()))),
        unit=checks.choice("unit", content.get("unit", "record"), {name: name for name in UNITS}),
    )
