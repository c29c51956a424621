"""`clipsilon enrol`: the tokens with which users prove that they may report."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from clipsilon.cli.errors import plain_errors
from clipsilon.local.enrolment import enrolment_token, read_secret


@click.command("enrol")
@click.argument("secret", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("users", metavar="[USER]...", nargs=-1)
def command(secret: Path, users: tuple[str, ...]) -> None:
    """Print the enrolment token of each USER, or of each line of the input, by the secret in the file SECRET.

    The file is created if it does not exist; `clipsilon serve --enrolment SECRET` asks for these tokens.
    """
    with plain_errors():
        key = read_secret(secret, create=True)
        for user in users or (line.rstrip("\n") for line in sys.stdin):
            click.echo(f"{user}\t{enrolment_token(key, user)}")
