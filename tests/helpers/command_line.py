"""The command line as its users type it."""

from click.testing import CliRunner

from clipsilon.cli.main import main


def run(*words):
    """Run a command and return its output and exit code."""
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
