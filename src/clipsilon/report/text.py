"""Numbers and formulas as text, for readers and for programs."""

from __future__ import annotations

import html
import re

import numpy as np

from clipsilon.report.charts import Cell

# θ_PS, e_t, θ_{t+1}: a single letter with a short index. Names such as residual_cap are left alone.
_INDEXED = re.compile(r"(?<![\w`])([^\W\d_]|[‖)*])_(?:\{([^{}]+)\}|([^\W_]{1,3}|∞|\*)(?!\w))")
_POWER = re.compile(r"\^(?:\(((?:[^()]|\([^()]*\))+)\)|([−-]?[\w.]*\w))")  # n^(−2(1−α)), t^−0.9
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]\d+)\b")  # 1.8e+05
_NEGATIVE = re.compile(r"(?<![\w)])-(?=\d)")
_VALUE = re.compile(r" ([=≥≤≈×]) (?=[\d−∞])")  # ε = 0.1, 2 × 10⁻³: not to be broken over two lines
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_CODE = re.compile(r"`([^`]+)`")


def to_html(text: str) -> str:
    """Return plain text as HTML: escaped, with `code`, indices, powers and numbers marked up."""
    pieces = _CODE.split(text)
    return "".join(f"<code>{html.escape(piece)}</code>" if k % 2 else _mark_up(piece) for k, piece in enumerate(pieces))


def _mark_up(text: str) -> str:
    lowered = _INDEXED.sub(lambda found: f"{found[1]}<sub>{found[2] or found[3]}</sub>", html.escape(text))
    raised = _POWER.sub(lambda found: f"<sup>{found[1] or found[2]}</sup>", lowered)
    powers = _SCIENTIFIC.sub(lambda found: _times_power(found[1], found[2]), raised)
    return _VALUE.sub("\u00a0\\1\u00a0", _NEGATIVE.sub("−", powers))


def _times_power(digits: str, power: str) -> str:
    """Return a number times a power of ten; a factor of one is left out."""
    return f"{digits} × 10{str(int(power)).translate(_RAISED)}".removeprefix("1 × ")


def to_mathtext(text: str) -> str:
    """Return plain text for matplotlib, with indices between dollar signs."""
    plain = text.replace("\\", r"\\").replace("$", r"\$")
    return _INDEXED.sub(lambda found: f"{found[1]}$_{{\\mathrm{{{found[2] or found[3]}}}}}$", plain)


def csv_cell(value: Cell) -> str:
    """Return a cell of a CSV file: eight digits, empty where there is no number."""
    if value is None:
        return ""
    if isinstance(value, str | bool | int | np.bool_ | np.integer):
        return str(value)
    return "" if np.isnan(value) else f"{float(value):.8g}"


def readable(value: Cell) -> str:
    """Return a cell of a table for readers: four digits, a dash where there is no number."""
    if value is None:
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer):
        return _grouped(str(value)).replace("-", "−")
    if not np.isfinite(value):
        return "–" if np.isnan(value) else "∞" if value > 0 else "−∞"
    return _four_digits(float(value))


def _grouped(digits: str) -> str:
    """Separate the thousands of numbers with five digits or more."""
    return f"{int(digits):,}".replace(",", "\u202f") if digits.isdigit() and len(digits) > 4 else digits


def _four_digits(value: float) -> str:
    """Return four digits, with a power of ten if the number is very large or small."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return _grouped(f"{float(f'{value:.4g}'):.12g}").replace("-", "−")
    head, power = f"{value:.3e}".split("e")
    return _times_power(f"{float(head):.4g}".replace("-", "−"), power)
