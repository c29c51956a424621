"""`clipsilon audit-training`: an attack on a training script, and the ε that it demonstrates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clipsilon._core import checks
from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.cli.options import confidence_option, format_option, neighbours_option, quiet_option

if TYPE_CHECKING:
    from clipsilon.privacy.auditing.training import TrainingAudit


@click.command("audit-training")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("words", metavar="-- COMMAND", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--target", required=True, help="Column to predict.")
@click.option("--delta", type=float, required=True, help="δ at which ε is stated.")
@neighbours_option("add-remove", "replace-one")
@click.option("--claimed", type=float, help="ε that the script claims, to be compared.")
@click.option("--canaries", type=int, default=1, show_default=True, help="Canaries in each run.")
@click.option("--runs", type=int, default=100, show_default=True, help="How often to run the script.")
@confidence_option
@click.option("--timeout", type=float, help="Seconds after which a run of the script has failed; default: none.")
@click.option("--skip-errors", is_flag=True, help="Go on after a failed run; it counts as a blind guess.")
@click.option("--seed", type=int, help="Seed of the coins, which the script must not know.")
@format_option("text", "json")
@quiet_option
def command(path: Path, words: tuple[str, ...], form: str, **about: Any) -> None:
    """Attack a training script with canaries, and state the ε that the attack demonstrates.

    COMMAND is run again and again, without a shell. It must hold {train}, {test} and {predictions}, which stand for
    three CSV files: the script trains on the first, which has the columns of FILE, and writes to the third a prediction
    for each row of the second, which lacks the target. The predictions are a column `prediction`, or probabilities in a
    column per label. A canary is a row of FILE with a wrong label; a fair coin decides whether a run contains it.

    Example: clipsilon audit-training data.csv --target y --delta 1e-5 --adjacency add-remove --claimed 1 -- python
    train.py {train} {test} {predictions}
    """
    from clipsilon.privacy.auditing.training import TrainingError

    with plain_errors(), stoppable("Stopped: no run was complete."):
        try:
            audit = audit_script(path, words, **about)
        except TrainingError as failure:
            if failure.audit is not None:
                click.echo(failure.audit)
            raise click.ClickException(str(failure).replace(" (`.audit` holds what", " (above is what")) from None
    click.echo(audit if form == "text" else json.dumps(audit.to_dict(), indent=2, ensure_ascii=False))
    if audit.stopped:
        click.get_current_context().exit(130)


def audit_script(
    path: Path,
    words: tuple[str, ...],
    *,
    target: str,
    adjacency: str,
    canaries: int,
    timeout: float | None,
    skip_errors: bool,
    quiet: bool,
    **about: Any,
) -> TrainingAudit:
    """Audit a script with the rows of a file.

    Parameters
    ----------
    path : Path
        A CSV file.
    words : tuple of str
        The command, with places for the files of a run.
    target : str
        The column to predict.
    adjacency, canaries
        As in `audit_training`.
    timeout : float or None
        Seconds after which a run has failed.
    skip_errors : bool
        Whether to go on after a failed run.
    quiet : bool
        Whether to show no progress.
    **about
        Further arguments of `audit_training`.

    Returns
    -------
    TrainingAudit
    """
    from clipsilon.cli.scripts import Script, parse_command, read_records
    from clipsilon.privacy.auditing.planted import plant
    from clipsilon.privacy.auditing.training import audit_training

    if timeout is not None:
        checks.positive("timeout", timeout)
    command, records = parse_command(words), read_records(path, target)
    planted = plant(records.features, records.labels, canaries, adjacency)
    script = Script(command, records, planted.rows(planted.canaries)[0], timeout)
    return audit_training(
        script.train,
        records.features,
        records.labels,
        adjacency=adjacency,
        score=script.score,
        canaries=canaries,
        on_error="skip" if skip_errors else "raise",
        progress=False if quiet else None,
        **about,
    )
