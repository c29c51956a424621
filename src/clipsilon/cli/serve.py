"""`clipsilon serve`: the HTTP service that takes reports under local privacy."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable
from pathlib import Path

import click

from clipsilon._core import checks
from clipsilon._core.databases import is_address
from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.cli.options import Decorator
from clipsilon.local.enrolment import read_secret
from clipsilon.local.server import REPEATS, WEIGHTS, Server
from clipsilon.problems.losses import HuberRegression, MallowsLogistic
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.regions import Ball
from clipsilon.rules.schedules import Power

LOSSES: dict[str, Callable[[], Loss]] = {"mallows-logistic": MallowsLogistic, "huber-regression": HuberRegression}

_OPTIONS: list[Decorator] = [
    click.option("--dimension", type=click.IntRange(min=1), required=True, help="Length of θ."),
    click.option("--start", type=float, default=0.0, show_default=True, help="Initial value of every entry of θ."),
    click.option("--step-size", type=float, required=True, help="η of the step sizes η·r^(−decay) of round r."),
    click.option(
        "--decay", type=float, default=0.5, show_default=True, help="Exponent of the step sizes; 0 keeps them constant."
    ),
    click.option("--radius", type=float, help="Bound on ‖θ‖; default: none."),
    click.option(
        "--repeats",
        type=click.Choice(list(REPEATS)),
        default="refuse",
        show_default=True,
        help="Refuse further reports of a user, or compose their budgets.",
    ),
    click.option("--turn-seconds", type=float, default=10.0, show_default=True, help="How long a ticket is valid."),
    click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Reports per round."),
    click.option("--round-seconds", type=float, help="Close a round so long after its first report; default: never."),
    click.option("--loss", type=click.Choice(list(LOSSES)), help="The loss; implausible reports are then refused."),
    click.option(
        "--weights",
        type=click.Choice(list(WEIGHTS)),
        default="budget",
        show_default=True,
        help="Weight the reports of a round by their budgets (needs --loss), or equally.",
    ),
    click.option("--variance", type=float, help="V of the weights; default: the largest variance of a gradient."),
    click.option(
        "--weight-cap", type=float, default=2.0, show_default=True, help="Larger budgets weigh as much as this one."
    ),
    click.option(
        "--trim", type=float, default=0.0, show_default=True, help="Fraction trimmed from each end of a round."
    ),
    click.option("--staleness", type=click.IntRange(min=0), help="Rounds that a report may be late; default: 0, or 4."),
    click.option("--most-budget", type=float, help="The most that one user's reports may compose to."),
    click.option("--feature", "features", multiple=True, metavar="NAME", help="Name of a feature; may be repeated."),
]
_ACCESS: list[Decorator] = [
    click.option(
        "--enrolment",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File with the secret of the enrolment tokens, see clipsilon enrol; default: anyone may report.",
    ),
    click.option(
        "--tls-certificate", type=click.Path(exists=True, dir_okay=False), help="Certificate (PEM); default: no TLS."
    ),
    click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its private key (PEM)."),
    click.option("--rate", type=float, help="Most requests per second from one address; default: no limit."),
    click.option(
        "--connections", type=click.IntRange(min=1), default=4096, show_default=True, help="Most open connections."
    ),
    click.option(
        "--per-address",
        type=click.IntRange(min=1),
        default=1024,
        show_default=True,
        help="Most open connections from one address.",
    ),
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option(
        "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 picks a free one."
    ),
]


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS + _ACCESS):
        command = option(command)
    return command


@click.command("serve")
@click.argument("ledger")
@_options
def command(
    ledger: str,
    dimension: int,
    start: float,
    step_size: float,
    decay: float,
    radius: float | None,
    loss: str | None,
    features: tuple[str, ...],
    enrolment: Path | None,
    tls_certificate: str | None,
    tls_key: str | None,
    rate: float | None,
    connections: int,
    per_address: int,
    host: str,
    port: int,
    **rounds: object,
) -> None:
    """Publish θ and collect reports under local privacy in LEDGER; a restart resumes from the ledger.

    LEDGER is a SQLite file, or the address of a PostgreSQL database, postgresql://…, which several servers may share.
    """
    from clipsilon._core import http_server
    from clipsilon.local import service

    name = "the database" if is_address(ledger) else ledger
    with plain_errors(), stoppable(f"Stopped; {name} holds all reports; the same command resumes from there."):
        access = service.Access(
            None if enrolment is None else read_secret(enrolment),
            connections,
            per_address,
            math.inf if rate is None else checks.positive("rate", rate),
        )
        tls = _tls(tls_certificate, tls_key)
        server = Server(
            ledger,
            start=[start] * dimension,
            step=Power(checks.positive("step_size", step_size), checks.nonnegative("decay", decay)),
            region=None if radius is None else Ball(checks.positive("radius", radius)),
            loss=None if loss is None else LOSSES[loss](),
            feature_names=features or None,
            **rounds,  # type: ignore[arg-type]
        )
        with server, http_server.listen(host, port) as listener:
            url = http_server.address(listener, tls is not None)
            click.echo(f"{name}: {server.reports} reports so far; listening on {url}")
            service.serve(server, listener, access=access, tls=tls)


def _tls(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ValueError("--tls-certificate and --tls-key must be given together, got one of them.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
