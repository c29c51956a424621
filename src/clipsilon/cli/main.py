"""The command `clipsilon`: a group that imports the file of a command when that command is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from clipsilon.cli.errors import stoppable
from clipsilon.version import __version__

# The command NAME is in the file NAME of this folder, with "_" for "-". The one-line helps stand here, so that listing
# the commands imports none of them.
COMMANDS = {
    "account": "State the privacy of PRESET: certified, claimed, and why.",
    "audit": "Attack PRESET and state the ε that the attack demonstrates.",
    "audit-training": "Attack a training script and state the ε that this demonstrates.",
    "bias": "Compute the bias that clipping alone will cause.",
    "budget": "Show what was charged to a budget file, or create one.",
    "claims": "Compare the papers' privacy claims with what holds.",
    "data": "Fetch data sets into the cache folder.",
    "demo": "Compare SGD, PCSGD and DiceSGD on two problems.",
    "enrol": "Print the tokens with which users prove that they may report.",
    "evaluate": "Evaluate a fitted model within a privacy budget.",
    "fit": "Fit a private model to a CSV or Parquet file.",
    "ledger": "State the privacy loss of the users in a ledger.",
    "live": "Deploy a model that learns privately from what people send.",
    "local": "Plan a collection under local privacy, by simulation.",
    "predict": "Predict the rows of a file with a fitted model.",
    "reproduce": "Reproduce the papers' figures and tables.",
    "schema": "Propose a schema for a CSV or Parquet file.",
    "serve": "Collect reports under local privacy, over HTTP.",
    "warm-up": "Compile what fits use, before anyone waits for it.",
}


class LazyGroup(click.Group):
    """A group of the commands in `COMMANDS`, each of which is imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, None if the name is unknown."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"clipsilon.cli.{cmd_name.replace('-', '_')}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Import and run a command; on Ctrl-C, even while it is imported, exit with code 130."""
        with stoppable("Stopped."):
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Private training by clipped, noisy gradient descent, for models that change the data they learn from."""
