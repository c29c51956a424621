"""`clipsilon live`: a deployed model that learns from what people send under it, over HTTP."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import click

from clipsilon._core import checks
from clipsilon._core.extras import needs_package
from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.cli.options import Decorator, adjacency_option
from clipsilon.live.stream import Stream
from clipsilon.problems.losses import GammaDeviance, Logistic, PoissonDeviance, SquaredError
from clipsilon.problems.losses.base import Loss
from clipsilon.rules.schedules import Constant

LOSSES: dict[str, Callable[[float], Loss]] = {
    "logistic": Logistic,
    "squared-error": SquaredError,
    "poisson": PoissonDeviance,
    "gamma": GammaDeviance,
}
TOKEN = "CLIPSILON_LIVE_TOKEN"

_PUBLIC: list[Decorator] = [
    click.option("--dimension", type=click.IntRange(min=1), required=True, help="Number of features of a record."),
    click.option("--loss", type=click.Choice(list(LOSSES)), required=True, help="The loss of one record."),
    click.option("--l2", type=float, default=0.0, show_default=True, help="Weight of ½‖θ‖² in the loss."),
    click.option("--epsilon", type=float, required=True, help="ε of the whole horizon."),
    click.option("--delta", type=float, required=True, help="δ at which ε is stated."),
    click.option("--horizon", type=click.IntRange(min=1), required=True, help="Number of records, one per person."),
    click.option("--limit", type=float, help="ε up to which --extend may go; default: --epsilon."),
    click.option("--extend", type=click.IntRange(min=1), help="Extend the horizon to so many records."),
    click.option("--batch", type=click.IntRange(min=1), help="Records per step; default: for about 400 steps."),
    click.option("--clip", type=float, help="Bound on one record's gradient; default: of the order of √dimension."),
    click.option("--step", type=float, help="Step size; default: for features of unit order."),
    click.option(
        "--deploy-every", type=click.IntRange(min=1), default=1, show_default=True, help="Steps between deployments."
    ),
    click.option(
        "--max-lag",
        type=click.IntRange(min=0),
        default=10,
        show_default=True,
        help="How many versions behind the deployed one a record may have been sent under.",
    ),
    adjacency_option("zero-out"),
    click.option("--intercept", is_flag=True, help="Add a column of ones."),
]


def _public_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_PUBLIC):
        command = option(command)
    return command


@click.command("live")
@click.argument("location", metavar="FILE")
@_public_options
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"File with the senders' token; default: the variable {TOKEN}, else FILE.token, which is created.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 picks a free one."
)
def command(
    location: str,
    loss: str,
    l2: float,
    extend: int | None,
    step: float | None,
    token_file: Path | None,
    host: str,
    port: int,
    **public: int | float | str | bool | None,
) -> None:
    """Deploy a model and learn privately from what people send under it; a restart continues from FILE.

    FILE is a SQLite file, or the address of a PostgreSQL database, postgresql://….
    """
    try:
        from clipsilon._core import web
        from clipsilon.live import service
    except ImportError:
        raise click.ClickException(needs_package("live", "starlette and uvicorn", "clipsilon[serve]")) from None

    with plain_errors(), stoppable(f"Stopped; {Path(location).name} holds everything; the same command continues."):
        sizes = None if step is None else Constant(checks.positive("step", step))
        penalised = LOSSES[loss](checks.nonnegative("l2", l2))
        with Stream(location, loss=penalised, step=sizes, **public) as stream:  # type: ignore[arg-type]
            if extend is not None:
                stream.extend(extend)
            token, source = _token(token_file, location)
            with web.listen(host, port) as listener:
                stated = stream.statement()
                click.echo(
                    f"{stream.accepted} of {stream.horizon} records so far; ε = {stated.certified:.4g} at "
                    f"δ = {stated.delta:g}; the senders' token is in {source}; listening on {web.address(listener)}"
                )
                service.serve(stream, token, listener)


def _token(file: Path | None, location: str) -> tuple[str, str]:
    """Return the token and where it is: a file, the environment, or a new file beside that of the stream."""
    if file is None and os.environ.get(TOKEN):
        return checks.token(f"the token in {TOKEN}", os.environ[TOKEN]), TOKEN
    if file is None and location.startswith(("postgresql://", "postgres://")):
        raise ValueError(f"--token-file or the variable {TOKEN} must be given with a PostgreSQL database.")
    path = Path(f"{location}.token") if file is None else file
    if file is None and not path.exists():
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as new:
            new.write(f"{secrets.token_urlsafe(32)}\n")
    return checks.token(f"the token in {path}", path.read_text("utf-8").strip()), str(path)
