"""What all commands have in common: their help, their options, and what they import."""

import importlib
import subprocess
import sys
from pathlib import Path

import click
import pytest

from clipsilon.cli import main as module
from clipsilon.cli.main import main
from command_line import run

DICE = ["DiceSGD", "--noise-std", "1", "--records", "1000", "--steps", "50", "--delta", "1e-5", "--residual-cap", "2"]


@pytest.mark.parametrize("name", ["none/bias.png", "bias.xyz", "bias"])
@pytest.mark.parametrize("command", [["bias", "--problem", "quadratic"], ["audit", *DICE]])
def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_computed(command, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*command, "--plot", name)
    assert done.exit_code == 2
    assert done.stdout == ""
    message = f"must be a .png, .svg or .pdf file in an existing folder, got '{name}'."
    assert done.stderr.splitlines()[-1] == f"Error: Invalid value for '--plot': {message}"


WRITING = {
    "fit": ["fit", "none.csv", "--target", "y", "--epsilon", "1", "--output"],
    "a report of fit": ["fit", "none.csv", "--target", "y", "--epsilon", "1", "--report"],
    "a budget of fit": ["fit", "none.csv", "--target", "y", "--epsilon", "1", "--budget"],
    "evaluate": ["evaluate", "none.json", "none.csv", "--epsilon", "1", "--report"],
    "a budget of evaluate": ["evaluate", "none.json", "none.csv", "--epsilon", "1", "--budget"],
    "predict": ["predict", "none.json", "none.csv", "--output"],
    "schema": ["schema", "none.csv", "--target", "y", "--output"],
    "budget": ["budget", "--create", "--epsilon", "1", "--delta", "1e-6"],
    "audit": ["audit", *DICE, "--plot"],
    "bias": ["bias", "--problem", "credit", "--plot"],
    "local simulate": ["local", "simulate", "--report"],
    "enrol": ["enrol"],
    "serve": ["serve", "--dimension", "2", "--step-size", "1"],
    "live": [*"live --dimension 2 --loss logistic --epsilon 1 --delta 1e-6 --horizon 100".split()],  # noqa: SIM905
    "demo": ["demo", "--output"],
    "demo live": ["demo", "live", "--output"],
    "reproduce": ["reproduce", "--output"],
}
SUFFIXES = {"--report": ".html", "--plot": ".png"}


def places(name):
    """Where a command cannot write: for "demo" and "reproduce", a folder that is missing or there already is fine."""
    if name in {"demo", "demo live", "reproduce"}:
        return ["file", "read-only"]
    opens = name in {"budget", "enrol", "serve", "live"} or name.startswith("a budget")
    return ["none", "file", "folder"] if opens else ["none", "file", "folder", "read-only"]


@pytest.mark.parametrize(("name", "place"), [(name, place) for name in WRITING for place in places(name)])
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(name, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = WRITING[name]
    output = f"x{SUFFIXES.get(words[-1], '')}"
    (tmp_path / "file").touch()
    (tmp_path / "folder" / output).mkdir(parents=True)
    (tmp_path / "read-only").mkdir()
    if place == "read-only":  # tests may run as root
        monkeypatch.setattr("clipsilon._core.storage.tempfile.TemporaryFile", refuse)
    before = sorted(tmp_path.rglob("*"))
    done = run(*words, f"{place}/{output}", *(["--quiet"] if "demo" in name else []))
    assert done.exit_code in {1, 2}
    message = done.stderr.splitlines()[-1]
    assert message.startswith("Error: ")
    assert f"{place}/{output}" in message
    assert (done.stdout, sorted(tmp_path.rglob("*"))) == ("", before)


def refuse(**arguments):
    raise PermissionError


def test_every_option_that_names_a_new_file_is_tested():
    known = {(words[0], words[-1]) for words in WRITING.values()}
    for command in commands():
        group = "local" if command.name == "simulate" else command.name
        for option in command.params:
            name = option.opts[0]
            if name in {"--output", "--report", "--plot", "--budget"} and isinstance(option.type, click.Path):
                assert (group, name) in known


def commands(group=main):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield from commands(command) if isinstance(command, click.Group) else [command]


@pytest.mark.parametrize("command", [*commands()], ids=lambda command: command.name)
def test_every_option_has_a_sentence_of_help(command):
    for option in command.params:
        if isinstance(option, click.Option):
            text = option.help.split("  [")[0]
            assert text.endswith(".")
            assert not text[0].islower() or text[0] in "εδμη"


def test_the_list_of_commands_is_not_truncated():
    assert "..." not in run("--help").output.split("Commands:")[1]


def test_an_option_has_the_same_help_everywhere():
    """Except for options whose meaning depends on the command."""
    own = {"--output", "--l2", "--target", "--clip", "--csv", "--seed", "--epsilon", "--delta", "--runs", "--budget",
           "--quantile", "--batch", "--loss", "--dimension", "--report", "--weights", "--staleness", "--step-size"}  # fmt: skip
    said = {}
    for command in commands():
        for option in command.params:
            if option.opts[0].startswith("--"):
                said.setdefault(option.opts[0], set()).add(option.help)
    assert [name for name, texts in said.items() if len(texts) > 1 and name not in own] == []


def test_every_file_of_a_command_is_registered():
    """A file that defines `command` holds the command of its name."""
    files = Path(module.__file__).parent.glob("*.py")
    found = {path.stem for path in files if "\ndef command(" in path.read_text("utf-8")}
    assert found == {name.replace("-", "_") for name in module.COMMANDS}
    for name in found:
        command = importlib.import_module(f"clipsilon.cli.{name}").command
        assert command.name == name.replace("_", "-")
        assert main.get_command(click.Context(main), command.name) is command


def loaded_by(*words):
    """Return the modules that a call imports, in a process of its own."""
    code = "import sys; from clipsilon.cli.main import main; main(standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_listing_the_commands_imports_none_of_them():
    loaded = {name for name in loaded_by("--help") if name.startswith("clipsilon.cli.")}
    assert loaded == {"clipsilon.cli.main", "clipsilon.cli.errors"}


@pytest.mark.parametrize("name", module.COMMANDS)
def test_the_help_of_a_command_imports_nothing_heavy(name):
    assert not {"sklearn", "matplotlib", "rich", "pandas", "pyarrow", "starlette"} & loaded_by(name, "--help")


def test_an_unknown_command():
    done = run("train")
    assert done.exit_code == 2
    assert done.output.endswith("Error: No such command 'train'.\n")


@pytest.mark.parametrize("name", module.COMMANDS)
def test_ctrl_c_while_a_command_is_imported_ends_in_one_line(name, monkeypatch):
    """Imports take up to two seconds, in which many notice that they mistyped an option."""

    def interrupted(place):
        assert place == f"clipsilon.cli.{name.replace('-', '_')}"
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "import_module", interrupted)
    done = run(name)
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "Stopped.\n")


@pytest.mark.parametrize("command", [*commands()], ids=lambda command: command.name)
def test_ctrl_c_in_a_command_ends_in_one_line(command, monkeypatch):
    def interrupted(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "callback", interrupted)
    monkeypatch.setattr(command, "params", [])
    group = {"simulate": ["local"], "credit": ["data"], "mnist": ["data"]}.get(command.name, [])
    done = run(*group, command.name)
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "Stopped.\n")
