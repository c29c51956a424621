"""What the steps of a pipeline learnt from the records, by asking each of them.

A step learnt nothing if its settings were given, not fitted, and if it transforms each row by itself. The first is
known for some of scikit-learn's steps. Of others it holds if `fit` left nothing on the step, neither on the estimators
that its parameters hold, and if a copy that is fitted to other rows transforms as the step does. The second can be
tested: `transform(X)[:k]` equals `transform(X[:k])`, in any order of the rows. In doubt, a step has learnt.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
)

from clipsilon.tables.encoder import SchemaEncoder

# Attributes that depend on no record: shapes, and how scikit-learn formats and routes.
_HARMLESS = {
    *("n_features_in_", "feature_names_in_", "n_output_features_", "_sklearn_output_config", "_metadata_request"),
}
_CLOSE = 1e-12  # relative difference of two results that rounding explains
_MANY = 1000  # rows, so that a function which looks some rows back has some to look at


def _has_given_categories(step: Any) -> bool:
    counted = step.min_frequency is not None or step.max_categories is not None
    return not isinstance(step.categories, str) and not counted


#: Steps that treat each row by itself, and when their settings were given.
_GIVEN: dict[type, Callable[[Any], bool]] = {
    Binarizer: lambda step: True,
    MissingIndicator: lambda step: step.features == "all",
    Normalizer: lambda step: True,
    OneHotEncoder: _has_given_categories,
    OrdinalEncoder: _has_given_categories,
    PolynomialFeatures: lambda step: True,
    SchemaEncoder: lambda step: not step.schema.proposed,
    SimpleImputer: lambda step: step.strategy == "constant" and step.keep_empty_features and not step.add_indicator,
    SplineTransformer: lambda step: not isinstance(step.knots, str),
}


def find_fault(step: Any, rows: Any = None) -> str | None:
    """Return a sentence about what a step without a statement learnt from the records; None if it learnt nothing.

    Parameters
    ----------
    step : estimator
        A fitted step.
    rows : array-like, optional
        Rows to test the step with; made up by default, and where it does not take these.

    Returns
    -------
    str or None
    """
    name = type(step).__name__
    if type(step) is SimpleImputer and step.strategy == "constant" and not step.keep_empty_features:
        return f"{name} leaves out columns in which fit saw no value, which is learnt: set keep_empty_features=True."
    if type(step) in _GIVEN:
        return None if _GIVEN[type(step)](step) else _learnt(name)
    if type(step) is FunctionTransformer and step.func is None:
        return None
    if _left_by_fit(step):
        return _learnt(name)
    if not hasattr(step, "transform"):
        return f"What {name} does to the records is not known: it has neither a statement nor a transform."
    return _tested_fault(step, rows)


def _tested_fault(step: Any, rows: Any) -> str | None:
    """Return what tests on rows find out about a step that left nothing on itself; None if it learnt nothing."""
    name, passed = type(step).__name__, 0
    for table in _tables(step, rows):
        try:
            alone, equal = treats_rows_alone(step.transform, table), _is_same_refitted(step, table)
        except Exception:  # whatever the user's function raises
            continue
        if not alone:
            return f"{name} looks at several rows at a time: one record changes what others become."
        if not equal:
            return _learnt(name)
        passed += 1
    return (
        None if passed else f"Whether {name} looks at one row at a time could not be tested: give rows= that it takes."
    )


def _learnt(name: str) -> str:
    return f"Learnt from the data without budget: {name}."


def _left_by_fit(step: Any) -> set[str]:
    """Return the attributes that are neither parameters nor harmless."""
    parameters = step.get_params(deep=False) if hasattr(step, "get_params") else {}
    return set(vars(step)) - set(parameters) - _HARMLESS


def find_held(step: Any) -> list[Any]:
    """Return the estimators that a step holds as parameters, or by methods of theirs that are parameters.

    Parameters
    ----------
    step : estimator
        A fitted step.

    Returns
    -------
    list of estimator
        None of them if `fit` left something on the step itself, which has then learnt anyway.
    """
    if type(step) in _GIVEN or not hasattr(step, "get_params") or _left_by_fit(step):
        return []
    return list(_held_by(list(step.get_params(deep=False).values())))


def _held_by(value: Any) -> Iterator[Any]:
    """Yield the estimators in a parameter: itself, the owner of a method, or what a collection or a partial holds."""
    if isinstance(value, partial):
        yield from _held_by([value.func, value.args, value.keywords])
    elif isinstance(value, Mapping):
        yield from _held_by(list(value.values()))
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from _held_by(part)
    elif hasattr(value, "fit") and hasattr(value, "get_params") and not isinstance(value, type):
        yield value
    elif getattr(value, "__self__", None) is not None:
        yield from _held_by(value.__self__)


def _is_same_refitted(step: Any, rows: Any) -> bool:
    """Return whether a copy of a step, fitted to other rows and labels, transforms these rows as the step does."""
    labels = np.arange(len(rows)) % 3 % 2
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = _table(step.transform(_taken(rows, np.arange(len(rows)))))
        try:
            found = _fit_transformed(clone(step), _taken(rows, np.arange(len(rows))), labels)
        except Exception:  # such as for other labels
            found = _fit_transformed(clone(step), _taken(rows, np.arange(len(rows))), None)
    return _are_equal(_table(found), expected)


def _fit_transformed(step: Any, rows: Any, labels: Any) -> Any:
    """Do what a pipeline does when it is fitted."""
    if hasattr(step, "fit_transform"):
        return step.fit_transform(rows, labels)
    return step.fit(rows, labels).transform(rows)


def treats_rows_alone(transform: Callable[[Any], Any], rows: Any) -> bool:
    """Return whether a function of a table treats each row by itself.

    Parameters
    ----------
    transform : callable
        From a table to a table with one row for each of its rows.
    rows : array or data frame
        At least two rows to try it on: one by one, some of them, and all in other orders.

    Returns
    -------
    bool
        False if any row's result depends on the others. True is no proof.
    """
    number = len(rows)
    if number < 2:
        raise ValueError(f"rows must be at least 2, got {number}")
    half = number // 2
    orders = [np.arange(number)[::-1], np.random.default_rng(0).permutation(number)]
    orders += [np.arange(half), np.arange(half, number), np.arange(0, number, 2), np.arange(1, number, 2)]
    orders += [np.array([place]) for place in range(min(number, 20))]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        whole = _table(transform(_taken(rows, np.arange(number))))
        if len(whole) != number:
            return False
        return all(_are_equal(_table(transform(_taken(rows, order))), whole[order]) for order in orders)


def _taken(rows: Any, order: NDArray[np.int64]) -> Any:
    """Return a copy of some rows, in an order."""
    return rows.iloc[order].copy() if hasattr(rows, "iloc") else rows[order].copy()


def _table(result: Any) -> NDArray[Any]:
    return np.asarray(result.toarray() if hasattr(result, "toarray") else result)


def _are_equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two results are equal up to rounding."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind not in "fc" or other.dtype.kind not in "fc":
        return bool(np.all((one == other) | ((one != one) & (other != other))))
    scale = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
    return bool(np.allclose(one, other, rtol=_CLOSE, atol=_CLOSE * scale, equal_nan=True))


def _tables(step: Any, rows: Any) -> Iterator[Any]:
    """Yield rows to test a step with: given and made-up ones, with gaps, and with values that occur again.

    Functions may look at other rows only where a value is missing (an imputer) or repeated (means of groups), or where
    there are many rows (moving means).
    """
    tables = [] if rows is None else [rows]
    if hasattr(step, "n_features_in_"):
        tables.append(_made_up(step))
    for table in tables:
        yield table
        if hasattr(table, "iloc") or isinstance(table, np.ndarray):
            yield _repeated(table)
            yield _with_gaps(table)


def _repeated(table: Any) -> Any:
    """Return many rows whose columns have few different values each, in all combinations."""
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, min(3, len(table)), _MANY) for _ in range(table.shape[1])]
    if not hasattr(table, "iloc"):
        return np.column_stack([table[rows, number] for number, rows in enumerate(columns)])
    import pandas

    drawn = {
        name: table.iloc[rows, number].array for number, (name, rows) in enumerate(zip(table, columns, strict=True))
    }
    return pandas.DataFrame(drawn)


def _with_gaps(table: Any) -> Any:
    """Return some of the rows, where values are missing; without gaps where the array cannot have any."""
    few = _taken(table, np.arange(min(len(table), 16)))
    gaps = np.random.default_rng(0).random(few.shape) < 0.2
    if hasattr(few, "iloc"):
        return few.mask(gaps)
    return np.where(gaps, np.nan, few) if few.dtype.kind == "f" else few


def _made_up(step: Any) -> Any:
    """Return rows of numbers of many sizes, with the names of the columns if the step knows them."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((16, step.n_features_in_)) * 10.0 ** rng.integers(-3, 4, (16, 1))
    rows[12:] = np.rint(rows[:4])  # whole numbers, too
    names: Sequence[str] | None = getattr(step, "feature_names_in_", None)
    if names is None:
        return rows
    import pandas

    return pandas.DataFrame(rows, columns=names)
