"""Settings of an Opacus training, as a dict or a file, and their privacy."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from math import ceil
from os import PathLike
from typing import Any

from clipsilon._core import checks
from clipsilon.privacy.statement import Statement, account
from clipsilon.rules.presets import DPSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import sampling_rate
from clipsilon.rules.schedules import Constant

Settings = Mapping[str, Any] | str | PathLike[str]

#: Opacus's names, and what they are called here.
KEYS = {
    "noise_multiplier": "noise_multiplier",
    "sample_rate": "sample_rate",
    "steps": "steps",
    "epochs": "epochs",
    "max_grad_norm": "clip",
    "batch_size": "batch",
    "delta": "delta",
    "target_delta": "delta",
    "records": "records",
}
_WHOLE = ("steps", "batch_size", "records")
#: Keys without an effect on privacy, and the only values that they may have.
_FIXED: dict[str, tuple[Any, ...]] = {
    "accountant": ("rdp", "prv", "gdp"),
    "poisson_sampling": (True,),
    "clipping": ("flat",),
    "secure_mode": (True, False),
    "loss_reduction": ("mean", "sum"),
    "grad_sample_mode": ("hooks", "functorch", "ew", "ghost", "ghost_fsdp", "no_op"),
}


def account_opacus(
    settings: Settings, *, records: int | None = None, delta: float | None = None, adjacency: str = "replace-one"
) -> Statement:
    """State the privacy of a training with the settings of Opacus.

    Parameters
    ----------
    settings : mapping or path
        A dict, or a .json or .toml file, with Opacus's names: `noise_multiplier`; `sample_rate` or `batch_size`;
        `steps` or `epochs`; and, if they are not given here, `records`, and `delta` or `target_delta`.
        `max_grad_norm` and `accountant` have no effect. A `batch_size` alone leaves open whether the loader has
        `drop_last`, by which Opacus draws fewer and larger batches: the larger rate and number of steps are stated.
    records : int, optional
        Number of records; takes precedence over the settings.
    delta : float, optional
        The δ at which ε is stated, between 0 and 1; takes precedence over the settings.
    adjacency : {"replace-one", "zero-out", "add-remove"}
        How neighbouring data sets differ. Opacus's ε is for "add-remove", which requires a `sample_rate` that does not
        follow from the number of records.

    Returns
    -------
    Statement
        That of `account` for DP-SGD with these settings.

    Formal guarantee
    ----------------
    `certified` holds for exact sums and noise, and batches that are drawn by Poisson sampling, which a training with
    Opacus is not checked for.

    Examples
    --------
    >>> import clipsilon as cs
    >>> settings = {"noise_multiplier": 1.1, "sample_rate": 0.01, "epochs": 5, "accountant": "prv"}
    >>> stated = cs.account_opacus(settings, records=25_000, delta=1e-5, adjacency="add-remove")
    >>> stated.steps, round(stated.certified, 2)
    (500, 1.08)
    """
    given = translate(read_settings(settings))
    given |= {name: value for name, value in (("records", records), ("delta", delta)) if value is not None}
    for names in (("noise_multiplier",), ("sample_rate", "batch_size"), ("steps", "epochs"), ("records",), ("delta",)):
        if not any(KEYS[name] in given for name in names):
            raise ValueError(f"settings must have {' or '.join(names)}, got {', '.join(given) or 'none'}.")
    if "steps" in given and "epochs" in given:
        raise ValueError("settings must have steps or epochs, got both.")
    rule = _rule_of(given)
    return account(rule, given["records"], _steps_of(given, rule), given["delta"], adjacency)


def read_settings(settings: Settings) -> dict[str, Any]:
    """Return settings of Opacus from a dict, or from a .json or .toml file."""
    if isinstance(settings, Mapping):
        return dict(settings)
    path = checks.path("settings", settings)
    form = "TOML" if path.suffix.lower() == ".toml" else "JSON"
    try:
        text = path.read_text("utf-8")
        found = tomllib.loads(text) if form == "TOML" else json.loads(text)
    except (OSError, ValueError, RecursionError) as problem:
        raise ValueError(f"settings must be a {form} file, got {path}: {problem}") from None
    if not isinstance(found, dict):
        raise ValueError(f"settings must hold one JSON object, got {type(found).__name__} in {path}.")
    return found


def translate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of Opacus under the names that they have here, or raise ValueError for one that is unknown."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if key in _FIXED:
            _check_fixed(key, value)
        elif key not in KEYS:
            raise ValueError(f"settings must have keys among {', '.join([*KEYS, *_FIXED])}, got {key!r}.")
        elif isinstance(value, bool) or not isinstance(value, int if key in _WHOLE else int | float):
            kind = "whole number" if key in _WHOLE else "number"
            raise ValueError(f"settings must hold a {kind} as {key}, got {value!r}.")
        elif KEYS[key] in found:
            raise ValueError(f"settings must name {KEYS[key]} once, got {key!r} besides another name for it.")
        else:
            found[KEYS[key]] = value
    return found


def _check_fixed(key: str, value: object) -> None:
    """Refuse values that would need another certificate."""
    if value not in _FIXED[key]:
        allowed = " or ".join(json.dumps(one) for one in _FIXED[key])
        raise ValueError(f"settings must have {allowed} as {key}, got {value!r}.")


def _rule_of(given: Mapping[str, Any]) -> Rule:
    """Return DP-SGD with these settings, whose rate is public if it was given."""
    rate = checks.rate("sample_rate", given["sample_rate"]) if "sample_rate" in given else None
    records = checks.count("records", given["records"])
    if rate is None:
        batch = _largest_batch(records, checks.count("batch_size", given["batch"]))
    else:
        batch = given.get("batch", batch_of(rate, records))
    clip, multiplier = given.get("clip", 1.0), checks.nonnegative("noise_multiplier", given["noise_multiplier"])
    noise = multiplier * checks.positive("max_grad_norm", clip) / checks.count("batch_size", batch)
    return DPSGD(Constant(1.0), clip=clip, noise_std=noise, batch=batch, sampling="poisson", rate=rate)


def _largest_batch(records: int, batch: int) -> int:
    """Return the largest mean size of Opacus's batches for a loader with this `batch_size`, rounded up.

    Opacus draws records with probability 1 in the number of the loader's batches, which is lower with `drop_last`.
    """
    return -(-records // max(1, records // batch))


def _steps_of(given: Mapping[str, Any], rule: Rule) -> int:
    """Return the number of steps, of which a pass has as many as the loader has batches, if no rate is given."""
    if "steps" in given:
        return int(given["steps"])
    if "sample_rate" in given:
        return steps_in(rule, given["records"], given["epochs"])
    batches = -(-int(given["records"]) // int(given["batch"]))
    return max(1, ceil(checks.positive("epochs", given["epochs"]) * batches))


def batch_of(rate: float, records: int) -> int:
    """Return the expected batch size of Poisson sampling with a public rate."""
    return max(1, round(rate * records))


def steps_in(rule: Rule, records: int, epochs: float) -> int:
    """Return how many steps so many passes over the records have, on average; a fraction of a step counts as one.

    Parameters
    ----------
    rule : Rule
        The rule, whose sampling determines how many steps a pass has.
    records : int
        Number of records.
    epochs : float
        Number of passes, above 0.
    """
    rate = sampling_rate(rule.sampling, checks.count("records", records))
    passes = checks.positive("epochs", epochs)
    return max(1, ceil(passes / rate * (1 - 1e-12)))  # 10 epochs of rate 1/3 are 30 steps, whatever rounding says
