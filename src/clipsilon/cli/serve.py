"""`clipsilon serve`: the HTTP service that takes reports under local privacy."""

from __future__ import annotations

from pathlib import Path

import click

from clipsilon._core import checks
from clipsilon._core.extras import needs_package
from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.local.server import REPEATS, Server
from clipsilon.problems.regions import Ball
from clipsilon.rules.schedules import Power


@click.command("serve")
@click.argument("ledger", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dimension", type=click.IntRange(min=1), required=True, help="Length of θ.")
@click.option("--start", type=float, default=0.0, show_default=True, help="Initial value of every entry of θ.")
@click.option("--step-size", type=float, required=True, help="η of the step sizes η·t^(−decay).")
@click.option(
    "--decay", type=float, default=0.5, show_default=True, help="Exponent of the step sizes; 0 keeps them constant."
)
@click.option("--radius", type=float, help="Bound on ‖θ‖; default: none.")
@click.option(
    "--repeats",
    type=click.Choice(list(REPEATS)),
    default="refuse",
    show_default=True,
    help="Refuse further reports of a user, or compose their budgets.",
)
@click.option(
    "--turn-seconds", type=float, default=10.0, show_default=True, help="How long a turn is reserved for a user."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 picks a free one."
)
def command(
    ledger: Path,
    dimension: int,
    start: float,
    step_size: float,
    decay: float,
    radius: float | None,
    repeats: str,
    turn_seconds: float,
    host: str,
    port: int,
) -> None:
    """Publish θ and collect reports under local privacy in LEDGER; a restart resumes from the ledger."""
    try:
        from clipsilon._core import web
        from clipsilon.local import service
    except ImportError:
        raise click.ClickException(needs_package("serve", "starlette and uvicorn", "clipsilon[serve]")) from None

    with plain_errors(), stoppable(f"Stopped; {ledger} holds all reports; the same command resumes from there."):
        server = Server(
            ledger,
            start=[start] * dimension,
            step=Power(checks.positive("step_size", step_size), checks.nonnegative("decay", decay)),
            region=None if radius is None else Ball(checks.positive("radius", radius)),
            repeats=repeats,
            turn_seconds=turn_seconds,
        )
        with server, web.listen(host, port) as listener:
            click.echo(f"{ledger}: {server.version} reports so far; listening on {web.address(listener)}")
            service.serve(server, listener)
