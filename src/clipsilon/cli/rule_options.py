"""The options that describe a rule and the length of its run, shared by `account` and `audit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click

from clipsilon.cli.options import Decorator, adjacency_option
from clipsilon.rules.presets import PRESETS, SAMPLERS
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant

_NAMES = [name for name in PRESETS if name != "SGD"]  # SGD is not private
ABOUT_PRESETS = f"PRESET is one of {', '.join(_NAMES)}."

_RULE: list[Decorator] = [
    click.argument("preset", metavar="PRESET", type=click.Choice(_NAMES, case_sensitive=False)),
    click.option("--clip", type=float, help="Bound on one record's gradient (C1); default: 1."),
    click.option("--lipschitz", type=float, help="The same bound for DPGD and NoisySelection; default: 1."),
    click.option("--error-clip", type=float, help="Bound on the fed-back error (C2); default: the clip."),
    click.option("--residual-cap", type=float, help="Cap on what one record adds to the error (C3)."),
    click.option("--noise-std", type=float, help="Standard deviation of the noise on the mean; for all other presets."),
    click.option("--budget", type=float, help="μ of every user; for LDPSGD and LDPASGD."),
    click.option("--scale", type=float, help="Scale of the noise on the sum, in units of the clip; for GammaDPSGD."),
    click.option("--selection-epsilon", type=float, help="ε for choosing an iterate; for NoisySelection."),
    click.option("--batch", type=int, help="Expected batch size; default: 1."),
    click.option(
        "--sampling", type=click.Choice(list(SAMPLERS)), help="How batches are drawn; default: as in the preset."
    ),
]
_RUN: list[Decorator] = [
    click.option("--records", type=int, required=True, help="Number of records."),
    click.option("--steps", type=int, required=True, help="Number of steps."),
    click.option("--delta", type=float, required=True, help="δ at which ε is stated."),
    adjacency_option("replace-one"),
]
_NEEDED = ("budget", "scale", "noise_std", "selection_epsilon")


def rule_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the argument PRESET and the options of a rule and its run."""
    for option in reversed(_RULE + _RUN):
        command = option(command)
    return command


def make_rule(preset: str, **options: float | str | None) -> Rule:
    """Return the rule that the options describe; an option that was not given is None.

    Raises click.UsageError for an option that does not apply to the preset, and for a required one that is missing.
    """
    arguments: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    known = inspect.signature(PRESETS[preset]).parameters
    for name in arguments.keys() - known.keys():
        raise click.UsageError(f"--{name.replace('_', '-')} does not apply to {preset}.")
    for bound in {"clip", "lipschitz"} & known.keys():
        arguments.setdefault(bound, 1.0)
    if "error_clip" in known:
        arguments.setdefault("error_clip", arguments["clip"])
    for name in _NEEDED:
        if name in known and name not in arguments:
            raise click.UsageError(f"--{name.replace('_', '-')} must be given for {preset}.")
    if "batch" in known:
        arguments.setdefault("batch", 1)
    return PRESETS[preset](step=Constant(1.0), **arguments)
