"""A scaler that learns the centres and scales of columns within a privacy budget, or takes public bounds for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from clipsilon._core import checks
from clipsilon._core.checks import short_repr
from clipsilon.engine.streams import spawn
from clipsilon.estimators.base import rollback_on_error, seed_from
from clipsilon.estimators.chunks import chunkwise, count_rows, is_chunked, to_chunks, total_balances
from clipsilon.estimators.fit_counter import FitCounterMixin
from clipsilon.estimators.quantiles import Belief, balances, search, values
from clipsilon.privacy.accounting import gaussian, profiles
from clipsilon.privacy.certificate import ADJACENCIES, Certificate
from clipsilon.privacy.statement import SEEDED, Statement
from clipsilon.privacy.warning import PrivacyWarning

Array = NDArray[np.float64]
Count = Callable[[Array, Array | None], NDArray[np.int64]]

_CENTER_QUESTIONS = 18  # the sign, 7 for the octave, 8 within it, 2 for the outskirts
_SCALE_QUESTIONS = 11
_CHECKS = 2
QUESTIONS = _CENTER_QUESTIONS + _SCALE_QUESTIONS + _CHECKS
_WITHIN = 0.95  # the share of values whose distance from the centre gives the scale
_LIKELY = 0.05, 0.95  # a quantile is taken to be between these shares of the belief
_LOOSE = 8.0  # how many times too large or too small a scale may be before it is called unknown
_WORST_ERROR = 1 / 20  # in a share of the records: with more, answers are worth nothing


class _Learnt(NamedTuple):
    center: Array
    scale: Array
    told: NDArray[np.bool_]


class PrivateScaler(FitCounterMixin, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Centre and scale columns of unknown units, privately.

    The centre is a column's median. The scale is the distance from it that 95 % of the values keep to, in units of a
    normal distribution's standard deviation. Both are found by 31 noisy counts a column (docs/how-to/scaling.md).
    With public `bounds` nothing is learnt and no budget is spent: low becomes −1 and high becomes 1. They are
    (lows, highs): two numbers for all columns, or two lists of one number a column, and not one pair a column.

    Formal guarantee: without bounds and without `random_state`, the centres and scales together are
    (epsilon, delta)-differentially private for data sets that are neighbours under `adjacency`. The scaled records
    are as private as the records themselves, so what is done with them needs a budget of its own.

    Attributes: `center_`, `scale_`; `learnt_`, False for columns that the noise hid, which are not centred, and not
    scaled but for what is surely too large; `statement_`, what was spent and on what terms.

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
        bounds: Any = None,
        adjacency: str = "zero-out",
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.adjacency = adjacency
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> PrivateScaler:
        """Learn centres and scales from the records, or take them from the bounds."""
        delta = checks.open_fraction("delta", self.delta)
        checks.choice("adjacency", self.adjacency, ADJACENCIES)
        with rollback_on_error(self):
            self._find(X, delta)
        return self

    def _find(self, X: Any, delta: float) -> None:
        n, columns, count = self._counted(X)
        if self.bounds is not None:
            found = _from_bounds(self.bounds, columns)
            self._keep(found, n, 0.0, ["Centres and scales come from public bounds: nothing was learnt."])
            return
        mu = gaussian.largest_mu(_budget(self.epsilon), delta)
        noise = spawn(seed_from(self.random_state), 1)[0].noise
        std = noise_std(mu, columns, self.adjacency)
        if _error(std, n) > _WORST_ERROR:
            reasons = ["So few records for so small a budget tell nothing: no column was looked at, no budget spent."]
            self._keep(_nothing(columns), n, 0.0, reasons)
        else:
            notes = self._count_fit()
            found = _learn(count, n, columns, std, noise)
            terms = _terms(mu, self.random_state is not None) + self._advice(found.told)
            self._keep(found, n, mu, terms, notes)
            for note in notes:
                warnings.warn(note, PrivacyWarning, stacklevel=3)
        for advice in self._advice(self.learnt_):
            warnings.warn(advice, UserWarning, stacklevel=3)

    @chunkwise
    def transform(self, X: Any) -> Array:
        """The records, centred and scaled."""
        check_is_fitted(self)
        return np.asarray((self._records(X, reset=False) - self.center_) / self.scale_)

    @chunkwise
    def inverse_transform(self, X: Any) -> Array:
        """The records whose scaled values these are."""
        check_is_fitted(self)
        return np.asarray(checks.records("X", X) * self.scale_ + self.center_)

    def _counted(self, X: Any) -> tuple[int, int, Count]:
        """The numbers of records and columns, and what counts values below thresholds, in memory or on Dask."""
        if is_chunked(X):
            data = to_chunks(X)
            validate_data(self, data.sample, reset=True, skip_check_array=True)
            return count_rows(data), data.sample.shape[1], partial(total_balances, data)
        records = self._records(X, reset=True)
        return *records.shape, partial(balances, np.asfortranarray(records))

    def _records(self, X: Any, reset: bool) -> Array:
        table = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=False)
        return np.asarray(checks.records("X", table))

    def _keep(self, found: _Learnt, records: int, mu: float, reasons: list[str], notes: tuple[str, ...] = ()) -> None:
        self.center_, self.scale_, self.learnt_ = found
        certificate = Certificate(profiles.gaussian(mu), (*reasons, *notes))
        about = type(self).__name__, records, QUESTIONS if mu > 0 else 0, self.delta, self.adjacency
        certified = certificate.epsilon(self.delta)
        self.statement_ = Statement(*about, certified, None, None, certificate.reasons, certificate, notes)

    def _advice(self, told: NDArray[np.bool_]) -> list[str]:
        """A sentence about the columns that the noise hid, by their names if they have any; none if it hid none."""
        hidden = np.flatnonzero(~told)
        if not hidden.size:
            return []
        names = getattr(self, "feature_names_in_", np.arange(told.size))[hidden]
        named = ", ".join(map(str, names[:10])) + (", …" if hidden.size > 10 else "")
        return [
            f"Noise hid {hidden.size} of {told.size} column(s), which are not centred: {named}. "
            "More records, a larger epsilon, or bounds would help."
        ]


def noise_std(mu: float, columns: int, adjacency: str) -> float:
    """The standard deviation on every balance with which all questions about all columns are μ-GDP together."""
    change = 2.0 if adjacency == "replace-one" else 1.0
    return float(change * np.sqrt(columns * QUESTIONS) / mu)


def _error(std: float, records: int) -> float:
    """The standard deviation of an answer as a share of the records."""
    return float(np.hypot(std, 0.3) / (2 * records))  # 0.3: what rounding adds


def _learn(count: Count, n: int, columns: int, std: float, noise: Generator) -> _Learnt:
    """Search the medians, then how far from them most values are."""
    error = _error(std, n)

    def share_below(thresholds: Array, center: Array | None = None) -> Array:
        # Balances are whole numbers, and so is the noise once rounded: no digits give either away.
        drawn = np.rint(std * noise.standard_normal(columns))
        return np.asarray(0.5 + (count(thresholds, center) + drawn) / (2 * n))

    middle, place = search(share_below, columns, 0.5, error, _CENTER_QUESTIONS, lowest=-1.0)
    center = values(place)
    within = min(_WITHIN, 1 - 3 * error)  # a larger share could not be told from all
    reach, _ = search(lambda t: share_below(t, center), columns, within, error, _SCALE_QUESTIONS, lowest=0.0)
    # Where the share does not grow from there on, as with 95 % zeros, the search may have ended anywhere below.
    beyond = _LOOSE * values(reach.place(_LIKELY[1]))
    grows = np.mean([share_below(beyond, center) for _ in range(_CHECKS)], axis=0) >= within + 1.5 * error
    return _settle(center, middle, reach, grows, float(ndtri((1 + within) / 2)))


def _settle(center: Array, middle: Belief, reach: Belief, grows: NDArray[np.bool_], deviations: float) -> _Learnt:
    """Take what is known well enough, and what does no harm for the rest."""
    least, most = (values(middle.place(share)) for share in _LIKELY)
    near, taken, far = (values(reach.place(share)) for share in (_LIKELY[0], 0.5, _LIKELY[1]))
    spread, doubt, size = taken / deviations, most - least, np.abs(center)
    precise = (near > 0) & (taken <= _LOOSE * near) & (far <= _LOOSE * taken) & grows
    # As good as constant: its size is known, and what spread there is may be the centre's own error.
    steady = (4 * doubt <= size) & (near <= size) & ~(precise & (3 * spread >= doubt))
    told = precise | steady
    center = np.where(told, center, 0.0)
    # Where only 0 is known, or nothing: a scale too small would do harm, one too large only loses the column.
    rest = np.where(center == 0, np.maximum(1.0, near), size)
    return _Learnt(center, np.where(precise & ~steady, spread, rest), told)


def _nothing(columns: int) -> _Learnt:
    return _Learnt(np.zeros(columns), np.ones(columns), np.zeros(columns, dtype=bool))


def _from_bounds(bounds: Any, columns: int) -> _Learnt:
    """The middle and half the width of public bounds."""
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise ValueError(
            f"bounds must be (lows, highs), each a number or one number a column, got {short_repr(bounds)}."
        )
    low, high = (checks.vector(name, end, columns) for name, end in zip(("lows", "highs"), bounds, strict=True))
    if not (low < high).all():
        raise ValueError(f"bounds must be (lows, highs) with every low below its high, got {short_repr(bounds)}.")
    return _Learnt(low / 2 + high / 2, high / 2 - low / 2, np.ones(columns, dtype=bool))


def _budget(epsilon: Any) -> float:
    if epsilon is None:
        raise ValueError("epsilon must be a number above 0 unless bounds are given, got None.")
    return checks.positive("epsilon", epsilon)


def _terms(mu: float, seeded: bool) -> list[str]:
    """On what terms the guarantee is given."""
    terms = [
        f"{QUESTIONS} noisy counts of every column: Gaussian differential privacy with μ = {mu:.4g}.",
        "A record that is zeroed out or absent is counted nowhere. The number of records is public, and the same for "
        "both data sets.",
        "Centres and scales are covered, and anything computed from them without the data. The scaled records are "
        "not: they are as private as the records.",
        "One fit is covered: each fit is a release of its own.",
    ]
    if seeded:
        terms.append(SEEDED)
    return terms
