"""Settings of an Opacus training as options of `clipsilon account`."""

from __future__ import annotations

from pathlib import Path

import click

from clipsilon.privacy.opacus import read_settings, translate


def _take_settings(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    """Make the settings in a file the defaults of the command's options, and tell that the accountant is not used."""
    if path is None:
        return
    try:
        settings = read_settings(path)
        defaults = translate(settings)
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None
    if "batch" in defaults and "sample_rate" not in defaults:  # drop_last changes how Opacus draws such batches
        raise click.BadParameter(
            "settings must have sample_rate, 1/len(data_loader), beside batch_size; or use clipsilon.account_opacus."
        )
    if "accountant" in settings:
        name = settings["accountant"]
        click.echo(f"Note: accountant {name!r} is not used: the certified ε is a proven upper bound.", err=True)
    context.default_map = {**(context.default_map or {}), **defaults}


config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_take_settings,
    help="JSON or TOML file with the settings of an Opacus training, for DPSGD; other options take precedence.",
)
