"""The kinds of column that a schema describes, and what each of them becomes as numbers.

A number, a date or a yes/no column becomes one number in [−1, 1], followed by an indicator if it may have gaps. A
category becomes a block of zeros with a single one. So no kind is longer than 1 where there is no gap.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from clipsilon._core import checks
from clipsilon._core.checks import short_repr
from clipsilon.tables.cells import Array, Cells, text_of, to_days, to_numbers, to_texts

OTHER, MISSING = "(other)", "(missing)"


class ColumnKind(Protocol):
    """What a schema asks of the description of a column."""

    @property
    def name(self) -> str:
        """The word for the kind in a file."""
        ...

    def check(self, column: str) -> None:
        """Raise ValueError if the description contradicts itself."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return the description as the entries of a file, without the kind."""
        ...

    def outputs(self, column: str) -> list[str]:
        """Return the names of the columns of numbers that this column becomes."""
        ...

    def encode(self, cells: Cells, where: str) -> csr_array:
        """Return one row of numbers per cell; `where` names the column in errors."""
        ...

    def is_covered(self, cells: Cells, where: str) -> NDArray[np.bool_]:
        """Return which cells are gaps, listed levels, or within the range; all others are encoded as if they were."""
        ...


@dataclass(frozen=True)
class Number:
    """A column of numbers: cut off at the ends of its range, which become −1 and 1.

    Parameters
    ----------
    low, high : float
        The range of most values, known or chosen without looking at the data.
    log : bool, default False
        Whether to take logarithms first, as for amounts; `low` must then be above 0.
    gap : float, optional
        The value that takes the place of a gap, beside an indicator. Without it, gaps are refused.

    Examples
    --------
    >>> import numpy as np
    >>> Number(0, 10).encode(np.array([0.0, 5.0, 99.0]), "x").toarray().ravel().tolist()
    [-1.0, 0.0, 1.0]
    """

    low: float
    high: float
    log: bool = False
    gap: float | None = None

    name = "number"

    def check(self, column: str) -> None:
        """Raise ValueError if the range is inverted, or does not suit `log` or `gap`."""
        low, high = (checks.number(f"range of column {column!r}", end) for end in (self.low, self.high))
        _check_order(column, low, high)
        if checks.flag(f"log of column {column!r}", self.log) and low <= 0:
            raise ValueError(f"range of column {column!r} must be above 0 for log = true, got {low:g} to {high:g}.")
        if self.gap is not None:
            _check_gap(column, checks.number(f"gap of column {column!r}", self.gap), low, high)

    def settings(self) -> dict[str, Any]:
        """Return the entries of a file."""
        return _without_defaults(
            {"range": [_plain(self.low), _plain(self.high)], "log": self.log, "gap": _plain(self.gap)}
        )

    def outputs(self, column: str) -> list[str]:
        """Return the column's own name, and that of the indicator."""
        return _names_with_gap(column, self.gap)

    def encode(self, cells: Cells, where: str) -> csr_array:
        """Return numbers in [−1, 1] and the indicator."""
        gap = None if self.gap is None else float(self._line(self.gap))
        return _with_gaps(self._line(to_numbers(cells, where)), gap, where)

    def is_covered(self, cells: Cells, where: str) -> NDArray[np.bool_]:
        """Return which values are within the range."""
        return _is_within(to_numbers(cells, where), self.low, self.high)

    def _line(self, values: float | Array) -> Array:
        """Return positions between −1 and 1."""
        kept = np.clip(values, self.low, self.high)
        if not self.log:
            return _to_unit(kept, self.low, self.high)
        return _to_unit(np.log(kept), math.log(self.low), math.log(self.high))


@dataclass(frozen=True)
class Date:
    """A column of dates, or of dates with a time: cut off at the ends of its range, which become −1 and 1.

    Parameters
    ----------
    low, high : date
        The range of most values.
    gap : date, optional
        The date that takes the place of a gap, beside an indicator. Without it, gaps are refused.
    pattern : str, optional
        How dates are written as text, such as "%d.%m.%Y"; by default as in 2024-12-31.
    """

    low: date
    high: date
    gap: date | None = None
    pattern: str | None = None

    name = "date"

    def check(self, column: str) -> None:
        """Raise ValueError if the range is inverted, or if the gap lies outside."""
        for end in (self.low, self.high, self.gap):
            if end is not None and (not isinstance(end, date) or isinstance(end, datetime)):
                raise ValueError(f"column {column!r} must have dates such as 2024-12-31, got {short_repr(end)}.")
        _check_order(column, self.low, self.high)
        if self.gap is not None:
            _check_gap(column, self.gap, self.low, self.high)
        if self.pattern is not None and not (isinstance(self.pattern, str) and "%" in self.pattern):
            raise ValueError(f"pattern of column {column!r} must be one such as '%d.%m.%Y', got {self.pattern!r}.")

    def settings(self) -> dict[str, Any]:
        """Return the entries of a file."""
        return _without_defaults({"range": [self.low, self.high], "gap": self.gap, "pattern": self.pattern})

    def outputs(self, column: str) -> list[str]:
        """Return the column's own name, and that of the indicator."""
        return _names_with_gap(column, self.gap)

    def encode(self, cells: Cells, where: str) -> csr_array:
        """Return numbers in [−1, 1] and the indicator."""
        gap = None if self.gap is None else float(self._line(self.gap.toordinal()))
        return _with_gaps(self._line(to_days(cells, self.pattern, where)), gap, where)

    def is_covered(self, cells: Cells, where: str) -> NDArray[np.bool_]:
        """Return which dates are within the range."""
        return _is_within(to_days(cells, self.pattern, where), self.low.toordinal(), self.high.toordinal() + 1)

    def _line(self, days: float | Array) -> Array:
        """Return positions between −1 and 1."""
        low, high = self.low.toordinal(), self.high.toordinal()
        return _to_unit(np.clip(days, low, high), low, high)


@dataclass(frozen=True)
class YesNo:
    """A column of two words, whatever their case: yes becomes 1 and no becomes −1.

    Parameters
    ----------
    yes, no : str, default "yes" and "no"
        The words.
    gap : str, optional
        The word that takes the place of a gap, beside an indicator. Without it, gaps are refused.
    """

    yes: str = "yes"
    no: str = "no"
    gap: str | None = None

    name = "yes/no"

    def check(self, column: str) -> None:
        """Raise ValueError if the words are the same, or if the gap is neither."""
        for word in (self.yes, self.no, self.yes if self.gap is None else self.gap):
            if not isinstance(word, str):
                raise ValueError(f"yes, no and gap of column {column!r} must be words, got {short_repr(word)}.")
        words = [self._key(word) for word in (self.yes, self.no)]
        if words[0] == words[1]:
            raise ValueError(f"yes and no of column {column!r} must differ, got {self.yes!r} for both.")
        if self.gap is not None and self._key(self.gap) not in words:
            raise ValueError(f"gap of column {column!r} must be {self.yes!r} or {self.no!r}, got {self.gap!r}.")

    def settings(self) -> dict[str, Any]:
        """Return the entries of a file."""
        return _without_defaults({"yes": self.yes, "no": self.no, "gap": self.gap})

    def outputs(self, column: str) -> list[str]:
        """Return the column's own name, and that of the indicator."""
        return _names_with_gap(column, self.gap)

    def encode(self, cells: Cells, where: str) -> csr_array:
        """Return −1, 1 and the indicator."""
        meaning = {self._key(self.yes): 1.0, self._key(self.no): -1.0}
        texts = to_texts(cells, {self.yes, self.no})
        values = [math.nan if text is None else meaning.get(self._key(text), math.inf) for text in texts]
        if math.inf in values:
            odd = texts[values.index(math.inf)]
            raise ValueError(f"{where} must hold {self.yes!r} or {self.no!r}, got {odd!r}.")
        gap = None if self.gap is None else meaning[self._key(self.gap)]
        return _with_gaps(np.array(values), gap, where)

    def is_covered(self, cells: Cells, where: str) -> NDArray[np.bool_]:
        """Return True for every cell: other words are refused."""
        return np.ones(cells.size, dtype=bool)

    @staticmethod
    def _key(word: str) -> str:
        return word.strip().casefold()


@dataclass(frozen=True)
class Category:
    """A column of words: a block with a one for the level, for any other level, or for a gap.

    Parameters
    ----------
    levels : sequence of str
        The words that are told apart, known or chosen without looking at the data. All others count as one.

    Examples
    --------
    >>> import numpy as np
    >>> Category(["north", "south"]).encode(np.array(["south", "east", ""]), "x").toarray().tolist()
    [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    """

    levels: Sequence[str]

    name = "category"

    def __post_init__(self) -> None:
        if isinstance(self.levels, Iterable) and not isinstance(self.levels, str):  # `check` refuses others
            object.__setattr__(self, "levels", tuple(self.levels))

    def check(self, column: str) -> None:
        """Raise ValueError if there are no levels, or the same one twice."""
        if not isinstance(self.levels, tuple) or not self.levels:
            raise ValueError(f"levels of column {column!r} must be a list of at least one, got {self.levels!r}.")
        for place, level in enumerate(self.levels):
            if not isinstance(level, str) or level != level.strip():
                raise ValueError(f"levels of column {column!r} must be words without outer spaces, got {level!r}.")
            if level in self.levels[:place]:
                raise ValueError(f"levels of column {column!r} must be different, got {level!r} twice.")

    def settings(self) -> dict[str, Any]:
        """Return the entries of a file."""
        return {"levels": list(self.levels)}

    def outputs(self, column: str) -> list[str]:
        """Return a name per level, and those for other levels and for gaps."""
        return [*(f"{column}={level}" for level in self.levels), f"{column} {OTHER}", f"{column} {MISSING}"]

    def encode(self, cells: Cells, where: str) -> csr_array:
        """Return rows with a single one."""
        places = self._places(cells)
        shape = places.size, len(self.levels) + 2
        return csr_array((np.ones(places.size), places, np.arange(places.size + 1)), shape=shape)

    def is_covered(self, cells: Cells, where: str) -> NDArray[np.bool_]:
        """Return which cells hold a listed level or a gap."""
        return np.asarray(self._places(cells) != len(self.levels))

    def _places(self, cells: Cells) -> NDArray[np.int64]:
        """Return the place of the one in each row."""
        place: dict[str | None, int] = {level: number for number, level in enumerate(self.levels)}
        other = len(self.levels)
        place[None] = other + 1
        return np.array([place.get(text, other) for text in to_texts(cells, self.levels)], dtype=np.int64)


KINDS: dict[str, type] = {kind.name: kind for kind in (Number, Category, Date, YesNo)}


def kind_from(column: str, entries: object) -> ColumnKind:
    """Return the kind that the entries of a file describe; `check` is left to the schema."""
    if not isinstance(entries, dict) or "kind" not in entries:
        raise ValueError(f"column {column!r} must have a kind, got {short_repr(entries)}.")
    kind = checks.choice(f"kind of column {column!r}", entries["kind"], KINDS)
    given = {name: value for name, value in entries.items() if name != "kind"}
    built: ColumnKind = _BUILDERS[kind](column, given)
    return built


def _number_from(column: str, given: dict[str, Any]) -> Number:
    _check_entries(column, given, required=("range",), optional=("log", "gap"))
    return Number(*_ends(column, given["range"]), given.get("log", False), given.get("gap"))


def _date_from(column: str, given: dict[str, Any]) -> Date:
    _check_entries(column, given, required=("range",), optional=("gap", "pattern"))
    low, high = (_as_date(column, end) for end in _ends(column, given["range"]))
    gap = _as_date(column, given["gap"]) if "gap" in given else None
    return Date(low, high, gap, given.get("pattern"))


def _yes_no_from(column: str, given: dict[str, Any]) -> YesNo:
    _check_entries(column, given, required=(), optional=("yes", "no", "gap"))
    return YesNo(**{name: text_of(word) for name, word in given.items()})


def _category_from(column: str, given: dict[str, Any]) -> Category:
    _check_entries(column, given, required=("levels",), optional=())
    levels = given["levels"]
    if not isinstance(levels, list | tuple):
        raise ValueError(f"levels of column {column!r} must be a list of at least one, got {short_repr(levels)}.")
    return Category([text_of(level) for level in levels])


_BUILDERS: dict[type, Any] = {Number: _number_from, Date: _date_from, YesNo: _yes_no_from, Category: _category_from}


def _check_entries(column: str, given: Collection[str], required: Sequence[str], optional: Sequence[str]) -> None:
    for name in required:
        if name not in given:
            raise ValueError(f"column {column!r} must have an entry {name!r}, got none.")
    for name in given:
        checks.choice(f"an entry of column {column!r}", name, dict.fromkeys((*required, *optional)))


def _ends(column: str, value: object) -> tuple[Any, Any]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"range of column {column!r} must be [low, high], got {short_repr(value)}.")
    return value[0], value[1]


def _as_date(column: str, value: object) -> date:
    """Return a date; TOML has dates, JSON has text."""
    try:
        return value if type(value) is date else date.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"column {column!r} must have dates such as 2024-12-31, got {short_repr(value)}.") from None


def _check_order(column: str, low: Any, high: Any) -> None:
    if not low < high:
        raise ValueError(f"range of column {column!r} must have low below high, got {low!s} to {high!s}.")


def _check_gap(column: str, gap: Any, low: Any, high: Any) -> None:
    if not low <= gap <= high:
        raise ValueError(f"gap of column {column!r} must be within its range, {low!s} to {high!s}, got {gap!s}.")


def _without_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None and value is not False}


def _plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _names_with_gap(column: str, gap: object) -> list[str]:
    return [column] if gap is None else [column, f"{column} {MISSING}"]


def _to_unit(values: float | Array, low: float, high: float) -> Array:
    """Map low to −1 and high to 1; halves are subtracted, since the difference may overflow."""
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    return np.asarray(np.clip((np.asarray(values, dtype=np.float64) - middle) / half, -1.0, 1.0))


def _with_gaps(values: Array, gap: float | None, where: str) -> csr_array:
    """Return positions and, if gaps are allowed, their indicator; NaN is a gap, and `gap` is put in its place."""
    gaps = np.isnan(values)
    if gap is None:
        if gaps.any():
            raise ValueError(
                f"{where} must have a value in every row unless the schema has an entry gap for it, got "
                f"{int(gaps.sum())} gap(s)."
            )
        return csr_array(values[:, None])
    return csr_array(np.column_stack([np.where(gaps, gap, values), gaps.astype(np.float64)]))


def _is_within(values: Array, low: float, high: float) -> NDArray[np.bool_]:
    return np.asarray(np.isnan(values) | ((low <= values) & (values <= high)))
