"""Propose a schema from the data, for a person to check. Looking at the data is not private."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.tables.cells import as_cells, to_days, to_texts
from clipsilon.tables.kinds import Category, ColumnKind, Date, Number, YesNo
from clipsilon.tables.ranges import round_factor, round_outward
from clipsilon.tables.schema import Schema

Array = NDArray[np.float64]

NOT_PRIVATE = (
    "Looking at the data is not private: these ranges and levels come from the rows, without noise. Replace what is "
    "not public knowledge, or learn it within a budget (clipsilon.tables.learn_levels and learn_ranges)."
)

_UNTIL_CHECKED = "Delete this line when all ranges and levels are public: until then, a fit certifies nothing."
_PAIRS = (("yes", "no"), ("y", "n"), ("true", "false"), ("t", "f"), ("1", "0"), ("1.0", "0.0"), ("on", "off"))
_PATTERNS = (None, "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y%m%d")
_AMBIGUOUS = {"%d/%m/%Y": "%m/%d/%Y"}
_ID_NAME = re.compile(r"(?:^|_)(?:ids?|uuid|guid|key|ssn|email|person|customer|client|user|patient|account)(?:_|$)")
_MOST_LEVELS = 100
_FEWEST_ROWS = 10  # of a level: a rarer one may point at a person
_FEW_VALUES = 10  # different whole numbers that may be codes
_BEYOND = 0.005  # fraction of the values beyond each end of a proposed range
_SKEWED = 3.0  # ratio of the tails of amounts, which are compared on a scale of logarithms


class Proposal(NamedTuple):
    """A schema that was proposed from the data.

    Parameters
    ----------
    schema : Schema
        To be checked by a person.
    remarks : dict of str
        What to check, by column; by "ignore" for those that are left out, and by "proposed" for all.
    people : tuple of str
        Columns whose values repeat and look like ids, and that may name the person of a row.
    """

    schema: Schema
    remarks: dict[str, str]
    people: tuple[str, ...]

    def to_toml(self, source: str) -> str:
        """Return the text of a schema file with comments about each column; `source` names the data."""
        head = [f"Proposed by clipsilon schema from {source}.", NOT_PRIVATE]
        return self.schema.to_toml(head, self.remarks)


class _Column(NamedTuple):
    """A column as it is looked at."""

    name: str
    rows: int
    gaps: int
    counts: Counter[str]  # of the cells that have a value


def propose_schema(
    columns: Mapping[str, ArrayLike], target: str | None = None, group: str | None = None, ignore: Sequence[str] = ()
) -> Proposal:
    """Propose a schema by looking at the cells, which is not private.

    Parameters
    ----------
    columns : mapping of arrays, or data frame
        The cells of each column, by name.
    target : str, optional
        The column to predict.
    group : str, optional
        The column that names the person of a row.
    ignore : sequence of str, optional
        Columns to leave out.

    Returns
    -------
    Proposal
        The schema, with `proposed` set, and remarks. Columns with ids, without values or with a single one are ignored.

    Raises
    ------
    ValueError
        If no column is left to learn from.
    """
    names = {str(name): name for name in columns}
    for role, named in (("target", target), ("group", group), *(("ignore", one) for one in ignore)):
        if named is not None:
            checks.choice(role, named, names)
    kinds: dict[str, ColumnKind] = {}
    remarks: dict[str, str] = {}
    left_out: dict[str, str] = {}
    people = []
    for name in names:
        if name in (target, group, *ignore):
            continue
        column = _look_at(name, columns[name])
        if group is None and looks_like_person(column.name, column.counts, column.rows):
            people.append(name)
        kind, remark = _propose(column)
        if kind is None:
            left_out[name] = remark
        else:
            kinds[name] = kind
            remarks[name] = remark
    if not kinds:
        raise ValueError(f"columns must have one to learn from, got none: {_listed(left_out)}.")
    if left_out:
        remarks["ignore"] = f"Left out: {_listed(left_out)}."
    remarks["proposed"] = _UNTIL_CHECKED
    schema = Schema(kinds, target, group, (*ignore, *left_out), proposed=True)
    return Proposal(schema, remarks, tuple(people))


def looks_like_person(name: str, counts: Mapping[str, int], rows: int) -> bool:
    """Return whether the values of a column repeat and look like ids.

    Parameters
    ----------
    name : str
        The column.
    counts : mapping of int
        How often each value occurs.
    rows : int
        Number of rows.

    Returns
    -------
    bool
        True if many values occur several times, none of them often, and the column is named like one of ids, or holds
        words that are no dates, or whole numbers that leave few gaps.
    """
    present = sum(counts.values())
    repeats = present / max(len(counts), 1)
    if len(counts) < 20 or repeats < 1.02 or max(counts.values()) > max(50, 0.02 * rows):
        return False
    if _ID_NAME.search(_snake(name)):
        return True
    if len(counts) < max(200, 0.05 * rows):
        return False
    return _is_dense(counts) if _are_numbers(counts) else _find_pattern(counts) == _NO_DATE


def _look_at(name: str, values: ArrayLike) -> _Column:
    texts = to_texts(as_cells(values, f"column {name!r}"))
    counts = Counter(text for text in texts if text is not None)
    return _Column(name, len(texts), texts.count(None), counts)


def _propose(column: _Column) -> tuple[ColumnKind | None, str]:
    """Return a kind and a remark; without a kind, the remark says why the column is left out."""
    if not column.counts:
        return None, "has no values"
    if len(column.counts) == 1 and not column.gaps:
        return None, "has the same value in every row"
    if looks_like_person(column.name, column.counts, column.rows):
        return None, "has values that repeat and look like ids; if it names the person of a row, make it the group"
    pair = _find_pair(column.counts)
    if pair is not None:
        return YesNo(*pair, pair[1] if column.gaps else None), _gap_remark(column)
    if _is_unique_id(column):
        return None, "has a different value in (nearly) every row, as ids, names and notes have"
    return _propose_date(column) or _propose_number(column) or _propose_category(column)


def _find_pair(counts: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the words for yes and no if there are no others."""
    words = {word.casefold(): word for word in counts}
    return next(((words[yes], words[no]) for yes, no in _PAIRS if set(words) == {yes, no}), None)


def _is_unique_id(column: _Column) -> bool:
    if column.rows - column.gaps < 20 or len(column.counts) < 0.95 * (column.rows - column.gaps):
        return False
    if not _are_numbers(column.counts):
        return _find_pattern(column.counts) is _NO_DATE
    return _are_whole(column.counts) and (bool(_ID_NAME.search(_snake(column.name))) or _is_dense(column.counts))


def _propose_number(column: _Column) -> tuple[ColumnKind, str] | None:
    if not _are_numbers(column.counts):
        return None
    values = np.sort(np.repeat(np.array([*map(float, column.counts)]), [*column.counts.values()]))
    if values[0] == values[-1]:
        return Category(list(column.counts)), _gap_remark(column)
    low, middle, high = (_quantile(values, fraction) for fraction in (_BEYOND, 0.5, 1 - _BEYOND))
    if low == high:
        low, high = float(values[0]), float(values[-1])
    log = _is_skewed(values)
    ends = round_factor(max(low, _smallest_above_zero(values)), high) if log else round_outward(low, high)
    if not log and low >= 0 > ends[0]:
        ends = 0, ends[1]
    remark = [_gap_remark(column)]
    if len(column.counts) <= _FEW_VALUES and _are_whole(column.counts):
        remark.append(f"Only {len(column.counts)} different numbers: if they are codes, make this a category.")
    if low <= 0 and log:
        remark.append("Values of 0 or less count as the lowest.")
    gap = _rounded_within(middle, ends) if column.gaps else None
    return Number(*ends, log, gap), " ".join(filter(None, remark))


def _is_skewed(values: Array) -> bool:
    """Return whether nearly all values are positive, and their logarithms are more symmetric than they are."""
    positive = values[values > 0]
    if positive.size < 0.95 * values.size or values[0] < 0:
        return False
    low, middle, high = (_quantile(positive, fraction) for fraction in (0.05, 0.5, 0.95))
    if not low < middle < high:
        return False
    plain = (high - middle) / (middle - low)
    logarithmic = math.log(high / middle) / math.log(middle / low)
    return plain > _SKEWED and logarithmic < plain and logarithmic < _SKEWED


def _smallest_above_zero(values: Array) -> float:
    return _quantile(values[values > 0], _BEYOND)


def _quantile(values: Array, fraction: float) -> float:
    """Return one of the sorted values, so that nothing is invented between them."""
    return float(values[min(int(fraction * values.size), values.size - 1)])


def _rounded_within(value: float, ends: tuple[float, float]) -> float:
    digits = 2 - math.floor(math.log10(ends[1] - ends[0]))
    rounded = min(max(round(value, digits), ends[0]), ends[1])
    return int(rounded) if float(rounded).is_integer() else rounded


_NO_DATE = "no date"


def _find_pattern(texts: Mapping[str, int]) -> str | None:
    """Return how all the texts are written as dates, None for ISO 8601, and `_NO_DATE` if they are none."""
    cells = np.array(list(texts), dtype=object)
    for pattern in _PATTERNS:
        if pattern is None and _are_numbers(texts):
            continue  # which may be read as ISO 8601, too
        if pattern == "%Y%m%d" and {*map(len, texts)} != {8}:
            continue
        try:
            years = [date.fromordinal(int(day)).year for day in to_days(cells, pattern, "")]
        except ValueError:
            continue
        if min(years) >= 1900 and max(years) <= 2100:
            return pattern
    return _NO_DATE


def _propose_date(column: _Column) -> tuple[ColumnKind, str] | None:
    pattern = _find_pattern(column.counts)
    if pattern == _NO_DATE or len(column.counts) < 2:
        return None
    days = to_days(np.array(list(column.counts), dtype=object), pattern, column.name)
    values = np.sort(np.repeat(days, [*column.counts.values()]))
    low, high = _whole_months(_quantile(values, _BEYOND), _quantile(values, 1 - _BEYOND))
    remark = [_gap_remark(column)]
    if pattern in _AMBIGUOUS and _reads_as(column.counts, _AMBIGUOUS[pattern]):
        remark.append(f"Days and months cannot be told apart: it may be {_AMBIGUOUS[pattern]}.")
    gap = date.fromordinal(int(_quantile(values, 0.5))) if column.gaps else None
    return Date(low, high, None if gap is None else min(max(gap, low), high), pattern), " ".join(filter(None, remark))


def _whole_months(first: float, last: float) -> tuple[date, date]:
    """Return the first and last day of the months, or of the years if there are several."""
    low, high = date.fromordinal(int(first)), date.fromordinal(int(last))
    if high.year - low.year >= 2:
        return date(low.year, 1, 1), date(high.year, 12, 31)
    next_month = date(high.year + high.month // 12, high.month % 12 + 1, 1)
    return low.replace(day=1), next_month - timedelta(days=1)


def _reads_as(texts: Mapping[str, int], pattern: str) -> bool:
    try:
        to_days(np.array(list(texts), dtype=object), pattern, "")
    except ValueError:
        return False
    return True


def _propose_category(column: _Column) -> tuple[ColumnKind | None, str]:
    frequent = [level for level, count in column.counts.most_common(_MOST_LEVELS) if count >= _FEWEST_ROWS]
    if not frequent:
        return None, f"has no value in {_FEWEST_ROWS} or more rows"
    remark = [_gap_remark(column)]
    rest = len(column.counts) - len(frequent)
    if rest:
        rows = sum(column.counts.values()) - sum(column.counts[level] for level in frequent)
        remark.append(f"{rest} rarer level(s), in {rows} row(s), are not listed and count as other.")
    return Category(sorted(frequent)), " ".join(filter(None, remark))


def _gap_remark(column: _Column) -> str:
    return f"{100 * column.gaps / column.rows:.2g} % of the rows have a gap." if column.gaps else ""


def _are_numbers(texts: Mapping[str, int]) -> bool:
    try:
        return all(math.isfinite(float(text)) for text in texts)
    except ValueError:
        return False


def _are_whole(texts: Mapping[str, int]) -> bool:
    return all(float(text).is_integer() for text in texts)


def _is_dense(texts: Mapping[str, int]) -> bool:
    """Return whether whole numbers leave few gaps, as ids that are counted up do."""
    if not _are_whole(texts):
        return False
    numbers = [*map(float, texts)]
    return max(numbers) - min(numbers) + 1 <= 3 * len(numbers)


def _snake(name: str) -> str:
    """Return a name in lower case, with its words separated by underscores."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def _listed(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {reason}" for name, reason in reasons.items())
