"""A scaler that learns the centres and scales of columns within a privacy budget, or takes public bounds for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from clipsilon._core import checks
from clipsilon._core.checks import short_repr
from clipsilon._core.grouping import group_rows
from clipsilon.engine import exact_noise
from clipsilon.engine.streams import spawn
from clipsilon.estimators.base import SEED_ADVICE, rollback_on_error, seed_from
from clipsilon.estimators.chunks import count_rows, is_chunked, to_chunks, total_balances
from clipsilon.estimators.chunkwise import chunkwise
from clipsilon.estimators.fit_counter import FitCounterMixin
from clipsilon.estimators.frames import naming_columns
from clipsilon.estimators.inputs import Array
from clipsilon.estimators.seen_rows import identify_rows
from clipsilon.privacy.accounting import gaussian, profiles
from clipsilon.privacy.budget import Budget, charge_to
from clipsilon.privacy.certificate import Certificate, require_public_size
from clipsilon.privacy.quantiles import (
    VOTE,
    WORST_ERROR,
    Posterior,
    answer_error,
    balance_noise,
    balances,
    person_balances,
    search,
    values,
)
from clipsilon.privacy.statement import SEEDED, Statement, about_seed
from clipsilon.privacy.warning import PrivacyWarning, warn_about_delta

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Column, RandomState, Table

Count = Callable[[Array, Array | None], NDArray[np.int64]]


class _Counted(NamedTuple):
    """What a fit may ask of the records: their number, and balances in units of 1/`vote`."""

    records: int
    columns: int
    ask: Count
    identify: Callable[[int], str | None]  # from a key to a digest of the rows, if they are in memory
    vote: int = 1
    unit: str = "record"


_CENTER_QUESTIONS = 18  # 1 for the sign, 7 for the octave, 8 within it, 2 for the tails
_SCALE_QUESTIONS = 11
_CHECKS = 2
QUESTIONS = _CENTER_QUESTIONS + _SCALE_QUESTIONS + _CHECKS
_WITHIN = 0.95  # fraction of values whose distance from the centre gives the scale
_LIKELY = 0.05, 0.95  # a quantile is assumed to be between these fractions of its posterior
_LOOSE = 8.0  # factor by which a scale may be too large or too small before it counts as unknown


class _Scaling(NamedTuple):
    """The result of a fit, one entry per column."""

    center: Array
    scale: Array
    learnt: NDArray[np.bool_]


class PrivateScaler(FitCounterMixin, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Centre and scale columns of unknown units, privately.

    The centre is the median of a column. The scale is the distance from it within which 95 % of the values lie, in
    units of the standard deviation of a normal distribution. Both are found by 31 noisy counts per column
    (docs/how-to/scaling.md). With public `bounds`, nothing is learnt and no budget is spent: low becomes −1 and high
    becomes 1.

    Parameters
    ----------
    epsilon : float or None, default 1.0
        The budget of one fit; may be None with `bounds`.
    delta : float, default 1e-6
        The δ of the budget.
    bounds : (lows, highs), optional
        Public bounds: two numbers for all columns, or two lists of one number per column (not one pair per column).
    adjacency : str, default "zero-out"
        What is hidden: "zero-out" (whether a record took part) or "replace-one". The number of records is public.
    random_state : int, RandomState or None, default None
        None for cryptographic noise. A seed makes the fit repeatable, and unfit for release.
    budget : Budget or path, optional
        A budget file, which the fit is charged to before it looks at the records (`clipsilon.Budget`).

    Attributes
    ----------
    center_, scale_ : array
        One number per column.
    learnt_ : array of bool
        False for columns hidden by the noise. These are not centred, and scaled only if they are certainly too large.
    statement_ : Statement
        What the fit spends, and on which terms.

    Formal guarantee
    ----------------
    Without bounds and without `random_state`, the centres and scales together are (epsilon, delta)-differentially
    private for data sets that are neighbours under `adjacency`. The scaled records are as private as the records
    themselves, so further use of them needs a budget of its own.

    Examples
    --------
    >>> import numpy as np
    >>> income = np.random.default_rng(0).lognormal(10, 0.5, size=(20_000, 1))
    >>> scaled = PrivateScaler(epsilon=0.5, random_state=0).fit_transform(income)
    >>> bool(abs(np.median(scaled)) < 0.1 and 0.5 < scaled.std() < 2)
    True
    """

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float = 1e-6,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        adjacency: str = "zero-out",
        random_state: RandomState = None,
        *,
        budget: Budget | str | PathLike[str] | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.adjacency = adjacency
        self.random_state = random_state
        self.budget = budget

    def fit(self, X: Table, y: object = None, groups: Column | None = None) -> PrivateScaler:
        """Learn centres and scales from the records, or take them from the bounds.

        Parameters
        ----------
        X : array-like, data frame, or Dask array or data frame
            One row of numbers per record.
        y : object, optional
            Ignored.
        groups : array-like, optional
            The id of each row's person, for people with several rows: each person has one vote in every count, the mean
            of those of the rows. Not for Dask collections.

        Returns
        -------
        PrivateScaler
            The fitted scaler.
        """
        delta = checks.open_fraction("delta", self.delta)
        require_public_size(self.adjacency)
        with rollback_on_error(self):
            self._find(self._counted(X, groups), delta)
        return self

    def _find(self, data: _Counted, delta: float) -> None:
        n, columns, *_ = data
        if self.bounds is not None:
            found = _from_bounds(self.bounds, columns)
            self._set(found, data, 0.0, ["Centres and scales come from public bounds: nothing was learnt."])
            return
        mu = gaussian.largest_mu(_check_budget(self.epsilon), delta)
        noise = spawn(seed_from(self.random_state), 1)[0].noise
        std = balance_noise(mu, columns * QUESTIONS, self.adjacency)
        if not self.can_learn(n, columns):
            reasons = ["Too few records for this budget to learn anything: no column was looked at, no budget spent."]
            self._set(_nothing(columns), data, 0.0, reasons)
        else:
            charge_to(self.budget, self._state(data, mu, _terms(mu, data.unit)), data.identify)
            notes = self._count_fit()
            found = _learn(data, std, noise)
            self._set(found, data, mu, _terms(mu, data.unit) + self._advice(found.learnt), notes)
            self._warn(data, notes)
        for advice in self._advice(self.learnt_):
            warnings.warn(advice, UserWarning, stacklevel=3)

    def can_learn(self, records: int, columns: int) -> bool:
        """Return whether the budget suffices to learn the scales of so many columns from so many records."""
        mu = gaussian.largest_mu(_check_budget(self.epsilon), self.delta)
        return answer_error(balance_noise(mu, columns * QUESTIONS, self.adjacency), records) <= WORST_ERROR

    def _warn(self, data: _Counted, notes: tuple[str, ...]) -> None:
        """Warn about what a fit that looked at the records reveals outside its statement."""
        seeded = (f"{SEEDED} {SEED_ADVICE}",) if self.random_state is not None else ()
        for note in seeded + notes:
            warnings.warn(note, PrivacyWarning, stacklevel=4)
        warn_about_delta(self.delta, data.records, stacklevel=4, unit=data.unit)

    @chunkwise
    def transform(self, X: Table) -> Array:
        """Return the records, centred and scaled."""
        check_is_fitted(self)
        return np.asarray((self._records(X, reset=False) - self.center_) / self.scale_)

    @chunkwise
    def inverse_transform(self, X: Table) -> Array:
        """Return the records whose scaled values these are."""
        check_is_fitted(self)
        return np.asarray(checks.records("X", X) * self.scale_ + self.center_)

    def _counted(self, X: Table, groups: Column | None) -> _Counted:
        """Return the numbers of records and columns, and the function that counts values, in memory or with Dask."""
        if is_chunked(X):
            if groups is not None:
                raise ValueError("groups must be None for a Dask collection here: give bounds, or scale in memory.")
            data = to_chunks(X)
            validate_data(self, data.sample, reset=True, skip_check_array=True)
            counts = count_rows(data)
            return _Counted(counts.rows, data.sample.shape[1], partial(total_balances, data, counts), lambda key: None)
        records = self._records(X, reset=True)
        identify = partial(identify_rows, records)
        if groups is None:
            return _Counted(len(records), records.shape[1], partial(balances, np.asfortranarray(records)), identify)
        order, starts = group_rows(checks.people("groups", groups, len(records)), None)
        count = partial(person_balances, starts, np.asfortranarray(records[order]))
        return _Counted(starts.size - 1, records.shape[1], count, identify, VOTE, "person")

    def _records(self, X: Table, reset: bool) -> Array:
        with naming_columns(X):
            table = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=False)
            return np.asarray(checks.records("X", table))

    def _set(self, found: _Scaling, data: _Counted, mu: float, reasons: list[str], notes: tuple[str, ...] = ()) -> None:
        """Set the attributes of a fitted scaler."""
        self.center_, self.scale_, self.learnt_ = found
        self.statement_ = self._state(data, mu, reasons, notes)

    def _state(self, data: _Counted, mu: float, reasons: list[str], notes: tuple[str, ...] = ()) -> Statement:
        """State what a fit spends."""
        certificate = Certificate(profiles.gaussian(mu), (*reasons, *notes))
        about = type(self).__name__, data.records, QUESTIONS if mu > 0 else 0, self.delta, self.adjacency
        certified = certificate.epsilon(self.delta)
        statement = Statement(*about, certified, None, None, certificate.reasons, certificate, notes, unit=data.unit)
        return about_seed(statement, self.random_state is not None)

    def _advice(self, learnt: NDArray[np.bool_]) -> list[str]:
        """Return a sentence that names the columns hidden by the noise, if there are any."""
        hidden = np.flatnonzero(~learnt)
        if not hidden.size:
            return []
        names = getattr(self, "feature_names_in_", np.arange(learnt.size))[hidden]
        listed = ", ".join(map(str, names[:10])) + (", …" if hidden.size > 10 else "")
        return [
            f"Noise hid {hidden.size} of {learnt.size} column(s), which are not centred: {listed}. "
            "More records, a larger epsilon, or bounds would help."
        ]


def _learn(data: _Counted, std: float, noise: Generator) -> _Scaling:
    """Search the medians, then the distances from them within which most values lie."""
    n, columns, count, _, vote, _ = data
    error = answer_error(std, n)

    def fraction_below(thresholds: Array, center: Array | None = None) -> Array:
        # Balances are whole numbers, and so is the exact noise: no low-order digits reveal either.
        drawn = exact_noise.draw_whole(noise, vote * std, columns)
        return np.asarray(0.5 + (count(thresholds, center) + drawn) / (2 * vote * n))

    middle, position = search(fraction_below, columns, 0.5, error, _CENTER_QUESTIONS, lowest=-1.0)
    center = values(position)
    within = min(_WITHIN, 1 - 3 * error)  # a larger fraction could not be distinguished from all
    reach, _ = search(lambda t: fraction_below(t, center), columns, within, error, _SCALE_QUESTIONS, lowest=0.0)
    # Where the fraction does not grow beyond, as with 95 % zeros, the search may have ended anywhere below.
    beyond = _LOOSE * values(reach.position(_LIKELY[1]))
    grows = np.mean([fraction_below(beyond, center) for _ in range(_CHECKS)], axis=0) >= within + 1.5 * error
    return _decide(center, middle, reach, grows, float(ndtri((1 + within) / 2)))


def _decide(
    center: Array, middle: Posterior, reach: Posterior, grows: NDArray[np.bool_], deviations: float
) -> _Scaling:
    """Use what is known precisely enough, and harmless numbers for the rest."""
    least, most = (values(middle.position(fraction)) for fraction in _LIKELY)
    near, taken, far = (values(reach.position(fraction)) for fraction in (_LIKELY[0], 0.5, _LIKELY[1]))
    spread, doubt, size = taken / deviations, most - least, np.abs(center)
    precise = (near > 0) & (taken <= _LOOSE * near) & (far <= _LOOSE * taken) & grows
    # Nearly constant: its size is known, and the spread may be no more than the error of the centre.
    steady = (4 * doubt <= size) & (near <= size) & ~(precise & (3 * spread >= doubt))
    learnt = precise | steady
    center = np.where(learnt, center, 0.0)
    # Where only 0 is known, or nothing: a scale too small would do harm, one too large only loses the column.
    rest = np.where(center == 0, np.maximum(1.0, near), size)
    return _Scaling(center, np.where(precise & ~steady, spread, rest), learnt)


def _nothing(columns: int) -> _Scaling:
    return _Scaling(np.zeros(columns), np.ones(columns), np.zeros(columns, dtype=bool))


def _from_bounds(bounds: tuple[ArrayLike, ArrayLike], columns: int) -> _Scaling:
    """Return the middle and half the width of public bounds."""
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise ValueError(
            f"bounds must be (lows, highs), each a number or one number per column, got {short_repr(bounds)}."
        )
    low, high = (checks.vector(name, end, columns) for name, end in zip(("lows", "highs"), bounds, strict=True))
    if not (low < high).all():
        raise ValueError(f"bounds must be (lows, highs) with every low below its high, got {short_repr(bounds)}.")
    return _Scaling(low / 2 + high / 2, high / 2 - low / 2, np.ones(columns, dtype=bool))


def _check_budget(epsilon: float | None) -> float:
    if epsilon is None:
        raise ValueError("epsilon must be a number above 0 unless bounds are given, got None.")
    return checks.positive("epsilon", epsilon)


def _terms(mu: float, unit: str) -> list[str]:
    """Return the terms of the guarantee."""
    people = ["A record is a person with all their rows, who has one vote in every count."] if unit == "person" else []
    return [
        *people,
        f"{QUESTIONS} noisy counts per column: Gaussian differential privacy with μ = {mu:.4g}.",
        "A record that is zeroed out is counted nowhere. The number of records is public, and the same for both data "
        "sets.",
        "Centres and scales are covered, and anything computed from them without the data. The scaled records are "
        "not: they are as private as the records.",
        "One fit is covered: each fit is a release of its own.",
    ]
