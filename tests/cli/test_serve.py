"""`clipsilon serve`, as its users type it."""

import signal
import subprocess
import sys

import pytest

import clipsilon
import clipsilon as cs
from clipsilon._core import web
from clipsilon.local import service
from command_line import run

STEP = cs.schedules.Power(0.2, 0.5)


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "ledger.db"
    with cs.local.Server(path, start=[0.0, 0.0], step=STEP, repeats="compose") as server:
        for user, mu in [("ann", 3.0), ("bob", 1.0), ("ann", 4.0)]:
            server.apply(user, mu, server.version, [0.1, 0.2])
    return path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step-size", "0.3", "--repeats", "compose"], "is the ledger of another run: its step is Power(eta=0.2"),
        (["--step-size", "0.2"], "is the ledger of another run: its repeats is compose, got refuse."),
        (["--step-size", "0", "--repeats", "compose"], "step_size must be a number above 0, got 0.0."),
        (["--step-size", "0.2", "--radius", "-1"], "radius must be a number above 0, got -1.0."),
        (["--step-size", "0.2", "--turn-seconds", "0"], "turn_seconds must be a number above 0, got 0.0."),
    ],
)
def test_serve_refuses_in_one_sentence(ledger, words, message, monkeypatch):
    monkeypatch.setattr(service, "serve", lambda *_: pytest.fail("it serves"))
    done = run("serve", ledger, "--dimension", "2", *words)
    assert done.exit_code == 1
    assert message in done.output
    assert done.output.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_serve_reports_that_it_was_stopped(tmp_path):
    """As by Ctrl-C in a terminal; a background process may ignore SIGINT, so the handler is restored first."""
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from clipsilon.cli.main import main; main(sys.argv[1:])"
    )
    words = ["serve", str(tmp_path / "ledger.db"), "--dimension", "2", "--step-size", "0.2", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script, *words], **pipes) as process:
        url = process.stdout.readline().split()[-1]
        cs.local.Client(url).model()  # it serves
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == (
            f"Stopped; {tmp_path / 'ledger.db'} holds all reports; the same command resumes from there.\n"
        )


def test_serve_refuses_a_port_in_use(tmp_path):
    words = ["--dimension", "2", "--step-size", "0.2", "--port"]
    with web.listen("127.0.0.1", 0) as listener:
        done = run("serve", tmp_path / "ledger.db", *words, listener.getsockname()[1])
    assert done.exit_code == 1
    assert "Address already in use" in done.output
    cs.local.Server(tmp_path / "ledger.db", start=[0.0, 0.0], step=STEP).close()  # it was left unlocked


@pytest.mark.parametrize("missing", ["uvicorn", "starlette.applications"])
def test_serve_without_its_extra(tmp_path, monkeypatch, missing):
    for package, module in ((clipsilon._core, "web"), (cs.local, "service")):
        monkeypatch.delitem(sys.modules, f"{package.__name__}.{module}", raising=False)
        monkeypatch.delattr(package, module, raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    done = run("serve", tmp_path / "l", "--dimension", "2", "--step-size", "0.2")
    assert (done.exit_code, done.output) == (
        1,
        "Error: serve needs starlette and uvicorn: run pip install 'clipsilon[serve]'.\n",
    )


def test_everything_else_needs_no_web_framework():
    """Devices and servers work in Python without starlette and uvicorn."""
    script = (
        "import sys; sys.modules |= dict.fromkeys(['starlette', 'uvicorn', 'anyio', 'h11']); import clipsilon as cs; "
        "print(cs.local.report([0.0], ([1.0], 1), cs.losses.MallowsLogistic(), 1.0).shape, cs.local.Server, cs.local.Client)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("(1,)")
