"""The options that describe a rule and the length of its run, shared by `account` and `audit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click

from clipsilon._core import checks
from clipsilon.cli.options import Decorator, adjacency_option
from clipsilon.privacy.opacus import batch_of, steps_in
from clipsilon.rules.presets import PRESETS, SAMPLERS
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant

_NAMES = [name for name in PRESETS if name != "SGD"]  # SGD is not private
ABOUT_PRESETS = f"PRESET is one of {', '.join(_NAMES)}."

#: Options that users of Opacus try, and what to write instead.
_ELSEWHERE = {
    "max_grad_norm": "--max-grad-norm is called --clip here.",
    "accountant": "--accountant must be left out: there is one accountant, whose ε is a proven upper bound.",
}


def _refuse(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(_ELSEWHERE[str(option.name)])


_RULE: list[Decorator] = [
    click.argument("preset", metavar="PRESET", type=click.Choice(_NAMES, case_sensitive=False)),
    click.option("--clip", type=float, help="Bound on one record's gradient (C1); default: 1."),
    click.option("--lipschitz", type=float, help="The same bound for DPGD and NoisySelection; default: 1."),
    click.option("--error-clip", type=float, help="Bound on the fed-back error (C2); default: the clip."),
    click.option("--residual-cap", type=float, help="Cap on what one record adds to the error (C3)."),
    click.option(
        "--noise-std",
        type=float,
        help="Standard deviation of the noise on the mean; this or --noise-multiplier, for all other presets.",
    ),
    click.option(
        "--noise-multiplier",
        type=float,
        help="The same noise on the sum of a batch, in units of the clip, as Opacus has it; for AdaptiveDPSGD, that of "
        "sum and count together.",
    ),
    click.option("--quantile", type=float, help="Fraction of records that are not clipped; for AdaptiveDPSGD."),
    click.option("--count-noise", type=float, help="Noise on the count; for AdaptiveDPSGD, and chosen by it."),
    click.option("--budget", type=float, help="μ of every user; for LDPSGD and LDPASGD."),
    click.option("--scale", type=float, help="Scale of the noise on the sum, in units of the clip; for GammaDPSGD."),
    click.option("--selection-epsilon", type=float, help="ε for choosing an iterate; for NoisySelection."),
    click.option("--batch", type=int, help="Expected batch size; default: 1, or as --sample-rate has it."),
    click.option(
        "--sampling", type=click.Choice(list(SAMPLERS)), help="How batches are drawn; default: as in the preset."
    ),
    click.option("--sample-rate", type=float, help="Public rate of Poisson sampling, which add-remove requires."),
    *(
        click.option(
            f"--{name.replace('_', '-')}", name, callback=_refuse, expose_value=False, hidden=True, help=sentence
        )
        for name, sentence in _ELSEWHERE.items()
    ),
]
_RUN: list[Decorator] = [
    click.option("--records", type=int, required=True, help="Number of records."),
    click.option("--steps", type=int, help="Number of steps; this or --epochs."),
    click.option("--epochs", type=float, help="Number of passes over the records, on average."),
    click.option("--delta", type=float, required=True, help="δ at which ε is stated."),
    adjacency_option("replace-one"),
]
_NEEDED = ("budget", "scale", "noise_std", "noise_multiplier", "quantile", "selection_epsilon")
_BECOMES = {"noise_multiplier": "noise_std", "sample_rate": "rate"}  # arguments of presets that options turn into


def rule_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the argument PRESET and the options of a rule and its run."""
    for option in reversed(_RULE + _RUN):
        command = option(command)
    return command


def make_rule(preset: str, records: int, **options: float | str | None) -> Rule:
    """Return the rule that the options describe; an option that was not given is None.

    Raises click.UsageError for options that contradict each other or do not apply to the preset, and for a required
    one that is missing.

    Parameters
    ----------
    preset : str
        Name of the preset.
    records : int
        Number of records, which a full batch is divided by.
    **options
        The other options of `rule_options` that describe a rule.

    Returns
    -------
    Rule
        The preset with steps of size 1.
    """
    arguments: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    known = inspect.signature(PRESETS[preset]).parameters
    for name in arguments:
        if name not in known and _BECOMES.get(name) not in known:
            raise click.UsageError(f"--{name.replace('_', '-')} does not apply to {preset}.")
    for bound in {"clip", "lipschitz"} & known.keys():
        arguments.setdefault(bound, 1.0)
    if "error_clip" in known:
        arguments.setdefault("error_clip", arguments["clip"])
    if "sample_rate" in arguments:
        _take_rate(arguments, records)
    if "batch" in known:
        arguments.setdefault("batch", 1)
    if "noise_multiplier" in arguments and "noise_multiplier" not in known:
        _take_multiplier(arguments, records)
    for name in _NEEDED:
        if name in known and name not in arguments:
            instead = ", or --noise-multiplier" if name == "noise_std" else ""
            raise click.UsageError(f"--{name.replace('_', '-')} must be given for {preset}{instead}.")
    return PRESETS[preset](step=Constant(1.0), **arguments)


def count_steps(rule: Rule, records: int, steps: int | None, epochs: float | None) -> int:
    """Return the number of steps, given as such or as passes over the records.

    Parameters
    ----------
    rule : Rule
        The rule, whose sampling determines how many steps a pass has.
    records : int
        Number of records.
    steps, epochs : int, float
        Exactly one of them; the other is None.

    Returns
    -------
    int
        The number of steps; a fraction of a step counts as one.
    """
    if steps is not None and epochs is None:
        return steps
    if epochs is not None and steps is None:
        return steps_in(rule, records, epochs)
    raise click.UsageError("Either --steps or --epochs must be given.")


def _take_rate(arguments: dict[str, Any], records: int) -> None:
    """Replace the sample rate by Poisson sampling with this rate, and by a batch size if none was given."""
    if arguments.setdefault("sampling", "poisson") != "poisson":
        raise click.UsageError(f"--sampling must be poisson with --sample-rate, got {arguments['sampling']}.")
    arguments["rate"] = checks.rate("sample rate", arguments.pop("sample_rate"))
    arguments.setdefault("batch", batch_of(arguments["rate"], records))


def _take_multiplier(arguments: dict[str, Any], records: int) -> None:
    """Replace the noise multiplier by the standard deviation on the mean."""
    if "noise_std" in arguments:
        raise click.UsageError("Only one of --noise-std and --noise-multiplier must be given: they are the same noise.")
    multiplier = checks.nonnegative("noise multiplier", arguments.pop("noise_multiplier"))
    bound = arguments.get("clip", arguments.get("lipschitz", 1.0))  # 1 for presets that normalise
    divisor = arguments.get("batch") if arguments.get("sampling") != "full" else None
    arguments["noise_std"] = multiplier * bound / (divisor or records)
