"""A public description of a table: what each column holds, what is predicted, and who the rows belong to."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from clipsilon._core import checks
from clipsilon._core.checks import short_repr
from clipsilon._core.storage import write_atomically
from clipsilon.tables.kinds import ColumnKind, kind_from
from clipsilon.tables.toml import to_toml

_ENTRIES = ("proposed", "target", "group", "ignore", "columns")
_SUFFIXES = {".toml": "TOML", ".json": "JSON"}


@dataclass(frozen=True)
class Schema:
    """What is publicly known about a table. Encoding by it costs no privacy.

    Parameters
    ----------
    columns : dict of Number, Category, Date or YesNo
        The features, by name, in the order in which they are encoded. Ranges and levels must be known or chosen without
        looking at the data, or learnt within a budget (`clipsilon.tables.learn_levels`, `learn_ranges`).
    target : str, optional
        The column to predict.
    group : str, optional
        The column that names the person that a row is about. It is never a feature.
    ignore : sequence of str, optional
        Columns that are not used.
    proposed : bool, default False
        Whether ranges and levels come from the rows, as in a schema that `clipsilon schema` proposes and that nobody
        has checked. Nothing is certified of what is learnt with it.

    Examples
    --------
    >>> import clipsilon as cs
    >>> schema = cs.Schema({"age": cs.tables.Number(18, 90, gap=45), "region": cs.tables.Category(["north", "south"])})
    >>> schema.feature_names()
    ['age', 'age (missing)', 'region=north', 'region=south', 'region (other)', 'region (missing)']
    """

    columns: Mapping[str, ColumnKind]
    target: str | None = None
    group: str | None = None
    ignore: Sequence[str] = ()
    proposed: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping) or not self.columns:
            raise ValueError(f"columns must describe at least one column, got {short_repr(self.columns)}.")
        for name, kind in self.columns.items():
            if not isinstance(name, str) or isinstance(kind, type) or not hasattr(kind, "outputs"):
                raise ValueError(f"columns must map names to kinds such as Number(0, 1), got {name!r}: {kind!r}.")
            kind.check(name)
        checks.flag("proposed", self.proposed)
        if isinstance(self.ignore, str) or not isinstance(self.ignore, Iterable):
            raise ValueError(f"ignore must be a list of columns, got {short_repr(self.ignore)}.")
        object.__setattr__(self, "columns", dict(self.columns))
        object.__setattr__(self, "ignore", tuple(self.ignore))
        self._check_roles()
        name, count = Counter(self.feature_names()).most_common(1)[0]
        if count > 1:
            raise ValueError(f"columns and levels must have names that give different features, got {name!r} twice.")

    def _check_roles(self) -> None:
        """Raise ValueError if a column has two roles."""
        roles: dict[str, str] = dict.fromkeys(self.columns, "a feature")
        named = [("target", "the target", self.target), ("group", "the group", self.group)]
        for entry, role, name in [*named, *(("ignore", "ignored", name) for name in self.ignore)]:
            if name is None:
                continue
            if not isinstance(name, str):
                raise ValueError(f"{entry} must name a column, got {short_repr(name)}.")
            if name in roles:
                raise ValueError(f"column {name!r} must have one role, got {roles[name]} and {role}.")
            roles[name] = role

    def feature_names(self) -> list[str]:
        """Return the names of the columns of numbers that rows are encoded as."""
        return [name for column, kind in self.columns.items() for name in kind.outputs(column)]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON: dates become text."""
        described = {name: {"kind": kind.name, **kind.settings()} for name, kind in self.columns.items()}
        return {**self._roles(), "columns": {name: _with_text(entries) for name, entries in described.items()}}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Schema:
        """Return the schema that `to_dict` returned, or that a file holds."""
        for name in content:
            checks.choice("an entry of the schema", name, dict.fromkeys(_ENTRIES))
        described = content.get("columns")
        if not isinstance(described, Mapping):
            raise ValueError(f"columns must describe at least one column, got {short_repr(described)}.")
        columns = {name: kind_from(name, entries) for name, entries in described.items()}
        roles = content.get("target"), content.get("group"), content.get("ignore", ())
        return cls(columns, *roles, proposed=content.get("proposed", False))

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Read a schema from a .toml or .json file, or raise ValueError with the file and what is wrong in it."""
        path = checks.path("path", path)
        form = checks.choice(f"the ending of {path}", path.suffix.lower(), _SUFFIXES)
        if not path.is_file():
            raise FileNotFoundError(f"path must be an existing file, got {path}.")
        try:
            text = path.read_text("utf-8")
            content = tomllib.loads(text) if form == "TOML" else json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise ValueError(f"{path} must be a schema in {form}, got a file that is not: {problem}.") from None
        if not isinstance(content, dict):
            raise ValueError(f"{path} must be a schema, got {short_repr(content)}.")
        try:
            return cls.from_dict(content)
        except ValueError as problem:
            raise ValueError(f"{path}: {problem}") from None

    def save(self, path: str | Path) -> None:
        """Write the schema to a .toml or .json file, which is replaced if it exists."""
        path = checks.path("path", path)
        form = checks.choice(f"the ending of {path}", path.suffix.lower(), _SUFFIXES)
        text = self.to_toml() if form == "TOML" else json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        write_atomically(path, lambda file: file.write(text.encode()))

    def to_toml(self, head: Sequence[str] = (), remarks: Mapping[str, str] | None = None) -> str:
        """Return the text of a TOML file; `head` are comments at its top, `remarks` those about columns."""
        described = {name: {"kind": kind.name, **kind.settings()} for name, kind in self.columns.items()}
        return to_toml(self._roles(), described, head, remarks or {})

    def _roles(self) -> dict[str, Any]:
        roles = {"proposed": self.proposed, "target": self.target, "group": self.group, "ignore": list(self.ignore)}
        return {name: value for name, value in roles.items() if value}


def _with_text(entries: dict[str, Any]) -> dict[str, Any]:
    """Return entries with dates as text."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(one) for one in value]
        return value.isoformat() if isinstance(value, date) else value

    return {name: plain(value) for name, value in entries.items()}
