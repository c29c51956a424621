"""Settings of an Opacus training as options of `clipsilon account`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

#: Keys of the file, and the parameters of the command that they become.
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
#: Keys without an effect here, and the only values that they may have.
_FIXED: dict[str, tuple[Any, ...]] = {
    "accountant": ("rdp", "prv", "gdp"),
    "poisson_sampling": (True,),
    "clipping": ("flat",),
}


def _take_settings(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    """Make the settings in a file the defaults of the command's options."""
    if path is None:
        return
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise click.BadParameter(f"must be a JSON file, got {path}: {problem}") from None
    if not isinstance(settings, dict):
        raise click.BadParameter(f"must hold one JSON object, got {type(settings).__name__} in {path}.")
    defaults: dict[str, Any] = {}
    for key, value in settings.items():
        if key in _FIXED:
            _check_fixed(key, value)
        elif key not in KEYS:
            raise click.BadParameter(f"must have keys among {', '.join([*KEYS, *_FIXED])}, got {key!r} in {path}.")
        elif isinstance(value, bool) or not isinstance(value, int if key in _WHOLE else int | float):
            kind = "whole number" if key in _WHOLE else "number"
            raise click.BadParameter(f"must hold a {kind} as {key}, got {value!r} in {path}.")
        elif KEYS[key] in defaults:
            raise click.BadParameter(f"must name {KEYS[key]} once, got {key!r} besides another name for it in {path}.")
        else:
            defaults[KEYS[key]] = value
    context.default_map = {**(context.default_map or {}), **defaults}


def _check_fixed(key: str, value: object) -> None:
    """Refuse values that would need another certificate; tell that the accountant is not used."""
    if value not in _FIXED[key]:
        allowed = " or ".join(json.dumps(one) for one in _FIXED[key])
        raise click.BadParameter(f"must have {allowed} as {key}, got {value!r}.")
    if key == "accountant":
        click.echo(f"Note: accountant {value!r} is not used: the certified ε is a proven upper bound.", err=True)


config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_take_settings,
    help="JSON file with the settings of an Opacus training, for DPSGD; other options take precedence.",
)
