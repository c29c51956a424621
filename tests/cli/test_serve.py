"""`clipsilon serve`, as its users type it."""

import signal
import subprocess
import sys

import pytest

import clipsilon as cs
from clipsilon._core import http_server
from clipsilon.local import service
from command_line import run
from processes import COMMAND

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
        (["--step-size", "0.2", "--batch", "2"], "loss must be given for rounds of several reports, unless weights"),
        (["--step-size", "0.2", "--trim", "0.7"], "trim must be at least 0 and below 0.5, got 0.7."),
        (["--step-size", "0.2", "--rate", "0"], "rate must be a number above 0, got 0.0."),
        (["--step-size", "0.2", "--enrolment", "missing.txt"], "No such file or directory"),
        (["--step-size", "0.2", "--tls-key", __file__], "--tls-certificate and --tls-key must be given together"),
    ],
)
def test_serve_refuses_in_one_sentence(ledger, words, message, monkeypatch):
    monkeypatch.setattr(service, "serve", lambda *_, **__: pytest.fail("it serves"))
    done = run("serve", ledger, "--dimension", "2", *words)
    assert done.exit_code == 1
    assert message in done.output
    assert done.output.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_serve_reports_that_it_was_stopped(tmp_path):
    words = ["serve", str(tmp_path / "ledger.db"), "--dimension", "2", "--step-size", "0.2", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, *words], **pipes) as process:
        url = process.stdout.readline().split()[-1]
        cs.local.Client(url).model()  # it serves
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == (
            f"Stopped; {tmp_path / 'ledger.db'} holds all reports; the same command resumes from there.\n"
        )


def test_the_options_of_rounds_and_access(tmp_path, monkeypatch):
    served = []
    monkeypatch.setattr(service, "serve", lambda server, listener, **how: served.append((server, how)))
    secret = tmp_path / "secret.txt"
    secret.write_text("a secret of the service\n")
    rounds = [
        "--batch",
        "50",
        "--round-seconds",
        "30",
        "--loss",
        "mallows-logistic",
        "--variance",
        "1",
        "--trim",
        "0.1",
    ]
    limits = ["--staleness", "2", "--most-budget", "3", "--feature", "age", "--feature", "income", "--rate", "7"]
    access = ["--enrolment", secret, "--connections", "9", "--per-address", "3", "--port", "0"]
    words = ["--dimension", "2", "--step-size", "0.2", *rounds, *limits, *access]
    done = run("serve", tmp_path / "ledger.db", *words)
    assert done.exit_code == 0, done.output
    ((server, how),) = served
    assert how == {"access": service.Access(b"a secret of the service", 9, 3, 7.0), "tls": None}
    assert (server.batch, server.round_seconds, server.staleness, server.most_budget) == (50, 30.0, 2, 3.0)
    assert server.feature_names == ("age", "income")
    assert server.loss == cs.losses.MallowsLogistic()
    assert tuple(server._process.averaging) == (1.0, server.loss.sensitivity(), 0.1, 2.0)


def test_serve_refuses_a_port_in_use(tmp_path):
    words = ["--dimension", "2", "--step-size", "0.2", "--port"]
    with http_server.listen("127.0.0.1", 0) as listener:
        done = run("serve", tmp_path / "ledger.db", *words, listener.getsockname()[1])
    assert done.exit_code == 1
    assert "Address already in use" in done.output
    cs.local.Server(tmp_path / "ledger.db", start=[0.0, 0.0], step=STEP).close()  # it was left unlocked


def test_everything_else_needs_no_web_framework():
    """Devices, servers and the service work without starlette and uvicorn."""
    script = (
        "import sys; sys.modules |= dict.fromkeys(['starlette', 'uvicorn', 'anyio', 'h11']); import clipsilon as cs; import clipsilon.local.service; "
        "print(cs.local.report([0.0], ([1.0], 1), cs.losses.MallowsLogistic(), 1.0).shape, cs.local.Server, cs.local.Client)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("(1,)")
