"""Write the part of TOML that a schema needs: the standard library reads TOML only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from textwrap import wrap
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100


def to_toml(
    roles: Mapping[str, Any],
    columns: Mapping[str, Mapping[str, Any]],
    head: Sequence[str],
    remarks: Mapping[str, str],
) -> str:
    """Return a schema as TOML.

    Parameters
    ----------
    roles : mapping
        The entries at the top: text, lists of text, and flags.
    columns : mapping of mappings
        The entries of each column.
    head : sequence of str
        Paragraphs of comment at the top.
    remarks : mapping of str
        Comments about entries of `roles` and about columns, by name.

    Returns
    -------
    str
    """
    lines = [line for paragraph in head for line in _comment(paragraph)]
    lines += [""] * bool(head)
    for name, value in roles.items():
        lines += [*_comment(remarks.get(name, "")), _entry(name, value)]
    for column, entries in columns.items():
        lines += ["", *_comment(remarks.get(column, "")), f"[columns.{_key(column)}]"]
        lines += [_entry(name, value) for name, value in entries.items()]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    # A name may hold any character, and TOML allows no control characters in comments.
    plain = "".join(mark if mark.isprintable() or mark == " " else "?" for mark in text)
    return [f"# {line}" for line in wrap(plain, _WIDTH)]


def _entry(name: str, value: object) -> str:
    text = f"{_key(name)} = {_value(value)}"
    if len(text) <= _WIDTH or not isinstance(value, list):
        return text
    return "\n".join([f"{_key(name)} = [", *(f"  {_value(one)}," for one in value), "]"])


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, date):
        return value.isoformat()
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    """Return a string in quotes: JSON escapes all that TOML does, but for the last control character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
