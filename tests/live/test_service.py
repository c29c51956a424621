"""The HTTP service: what it answers, what it refuses, and what outsiders see."""

import json
import os
import re
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import clipsilon as cs
import crowds
from clipsilon.cli.main import main
from clipsilon.live import Stream
from clipsilon.live.service import application, running

X, Y = crowds.population()


@pytest.fixture
def stream(tmp_path):
    with Stream(tmp_path / "run.db", **crowds.settings()) as one:
        yield one


@pytest.fixture
def url(stream):
    with running(stream, crowds.TOKEN) as one:
        yield one


@pytest.fixture
def caller(url):
    one = crowds.Caller(url)
    yield one
    one.close()


def post(caller, first, last, version, key, **more):
    body = {"key": key, "version": version, "records": crowds.records(X, Y, first, last), **more}
    return caller.ask("POST", "/records", body)


def test_records_are_taken_and_models_answered(caller, stream):
    status, answer = post(caller, 0, 25, 0, "a")
    assert (status, answer) == (200, {"accepted": 25, "refused": [], "version": 2})
    assert post(caller, 0, 25, 0, "a") == (200, answer)
    status, answer = post(caller, 20, 30, 2, "b")
    assert (status, answer["accepted"], answer["version"]) == (200, 5, 3)
    assert answer["refused"][0] == {
        "place": 0,
        "person": "p20",
        "code": "repeated",
        "reason": "person 'p20' has already sent a record; each may send one.",
    }
    status, model = caller.ask("GET", "/model")
    assert (status, model["version"], model["steps"]) == (200, 3, 3)
    np.testing.assert_array_equal(model["theta"], stream.model.theta)
    np.testing.assert_array_equal(model["average"], stream.model.average)
    status, stated = caller.ask("GET", "/statement")
    assert stated["certified_epsilon"] == stream.statement().certified
    assert (stated["limit"], stated["horizon"], stated["steps_done"]) == (1.0, 403, 3)
    status, history = caller.ask("GET", "/history")
    assert [row["version"] for row in history["versions"]] == [0, 1, 2, 3]
    status, inside = caller.ask("GET", "/inside")
    assert (inside["accepted"], inside["refused"]) == (30, {"repeated": 5})
    assert inside["expected_gap"] is None  # too few records
    np.testing.assert_allclose(inside["reaction"][0]["means"], X[:25].mean(axis=0))


def test_requests_that_are_refused_change_nothing(caller, stream):
    post(caller, 0, 20, 0, "a")
    file = stream._store._database
    before = file.run("SELECT * FROM progress"), file.run("SELECT COUNT(*) FROM post")
    stale = post(caller, 20, 30, 9, "b")
    assert stale[0] == 409
    assert stale[1]["code"] == "future"
    assert post(caller, 20, 30, 2, "a")[1]["code"] == "reused"
    assert post(caller, 20, 30, "2", "b")[0] == post(caller, 20, 30, 2, "")[0] == 422
    shape = {
        "code": "malformed",
        "error": "the body must be a JSON object with the fields key, version, records, and no others.",
    }
    for body in (
        b"",
        b"[1]",
        b"{",
        b"[" * 100_000,
        {"key": "k", "version": 2},
        {"key": "k", "version": 2, "records": "a"},
    ):
        assert caller.ask("POST", "/records", body) == (400, shape)
    assert post(caller, 20, 30, 2, None)[0] == post(caller, 20, 30, 2, "b", more=1)[0] == 400
    status, answer = post(caller, 0, 0, 2, "b", records=[{}] * 1001)
    assert (status, answer["error"]) == (422, "records must be a list of at most 1000 records, got 1001 of them.")
    status, answer = caller.ask("POST", "/records", b" " * 1_188_097)
    assert (status, answer["error"]) == (413, "the body must be at most 1188096 bytes.")
    assert (file.run("SELECT * FROM progress"), file.run("SELECT COUNT(*) FROM post")) == before


def test_numbers_that_json_should_not_hold_are_refused(caller, stream):
    one, two, three = crowds.records(X, Y, 0, 3)
    body = {"key": "k", "version": 0, "records": [{**one, "features": [np.nan] * 5}, {**two, "label": np.inf}, three]}
    assert "NaN" in json.dumps(body)
    status, answer = caller.ask("POST", "/records", body)
    assert (status, answer["accepted"], stream.accepted) == (200, 1, 1)
    assert [(one["place"], one["code"]) for one in answer["refused"]] == [(0, "invalid"), (1, "invalid")]


def test_a_name_that_is_no_text_is_refused_and_the_others_are_taken(caller, stream):
    one, two = crowds.records(X, Y, 0, 2)
    sent = [{**one, "person": "\ud800"}, two]
    status, answer = caller.ask("POST", "/records", {"key": "k", "version": 0, "records": sent})
    assert (status, answer["accepted"], answer["refused"][0]["code"], stream.accepted) == (200, 1, "invalid", 1)


@pytest.mark.parametrize("token", ["", " " * 20, "short", "ü" * 20])
def test_a_token_that_can_be_guessed_is_refused(stream, token):
    with pytest.raises(ValueError, match="token must be at least 16 printable ASCII characters"):
        application(stream, token)


@pytest.mark.parametrize("token", [None, "wrong", crowds.TOKEN + "x", "ü"], ids=str)
def test_outsiders_see_models_and_statements_alone(url, stream, token):
    sender, outsider = (
        crowds.Caller(url),
        crowds.Caller(url, None if token is None else token.encode("utf-8").decode("latin-1")),
    )
    post(sender, 0, 25, 0, "a")
    for request in (("GET", "/inside"), ("POST", "/records", {"key": "b", "version": 2, "records": []})):
        assert outsider.ask(*request) == (401, {"code": "unauthorised", "error": "the token is missing or wrong."})
    assert stream.accepted == 25
    status, model = outsider.ask("GET", "/model")
    assert (status, sorted(model)) == (200, ["average", "steps", "theta", "version"])
    told = json.dumps([model, *(outsider.ask("GET", path)[1] for path in ("/statement", "/history"))])
    assert "p3" not in told
    assert "25" not in re.findall(r"\d+", told)  # the number of records that have come is not told, only that of steps
    state = stream._store.load()
    assert not [number for number in state.streams[1]["s"]["seed"]["items"] if str(number) in told]
    for one in (sender, outsider):
        one.close()


def test_a_full_disk_is_told_on_every_route(caller, stream):
    file = stream._store._database
    file.run("PRAGMA wal_checkpoint(TRUNCATE)")
    file.run(f"PRAGMA max_page_count = {file.run('PRAGMA page_count')[0][0]}")
    answers = [post(caller, k, k + 100, 0, f"k{k}") for k in range(0, 403, 100)]
    assert answers[-1][0] == 503
    assert "full" in answers[-1][1]["error"]
    for path in ("/", "/model", "/statement", "/history", "/inside"):
        assert caller.ask("GET", path) == (503, {"code": "closed", "error": answers[-1][1]["error"]})


# The command.

COMMAND = [
    "--dimension",
    "5",
    "--loss",
    "logistic",
    "--epsilon",
    "1",
    "--delta",
    "1e-5",
    "--horizon",
    "403",
    "--batch",
    "10",
]


def started(path, *more):
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from clipsilon.cli.main import main; main()",
            "live",
            str(path),
            *COMMAND,
            "--port",
            "0",
            *more,
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    line = process.stdout.readline()
    return process, line, line.split()[-1]


def test_the_command_serves_stops_and_continues(tmp_path):
    path = tmp_path / "run.db"
    process, line, url = started(path)
    token = tmp_path / "run.db.token"
    assert f"the senders' token is in {token}" in line
    assert "0 of 403 records so far; ε = 0.99" in line
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    caller = crowds.Caller(url, token.read_text().strip())
    assert post(caller, 0, 25, 0, "a")[0] == 200
    model = caller.ask("GET", "/model")
    caller.close()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process, line, url = started(path)
    assert "25 of 403 records so far" in line
    caller = crowds.Caller(url, token.read_text().strip())
    assert caller.ask("GET", "/model") == model
    caller.close()
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run.db", "run.db.token"]  # closed, so there is no log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "2"], "is the file of another stream: its epsilon is 1.0, got 2.0."),
        (["--clip", "0"], "clip must be a number above 0"),
        (["--extend", "1000"], "horizon must be at most 403 for the limit of ε = 1, got 1000"),
        (["--token-file", "{folder}/short"], "must be at least 16 printable ASCII characters without spaces around."),
        (["--token-file", "{folder}/none"], "No such file"),
    ],
    ids=str,
)
def test_the_command_refuses_in_a_sentence(tmp_path, options, message):
    path = tmp_path / "run.db"
    (tmp_path / "short").write_text("short")
    Stream(path, **crowds.settings()).close()
    options = [one.format(folder=tmp_path) for one in options]
    result = CliRunner().invoke(main, ["live", str(path), *COMMAND, "--port", "0", *options])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert message in result.output
    assert result.output.count("\n") == 1


def test_the_environment_may_hold_the_token(monkeypatch):
    from clipsilon.cli import live

    monkeypatch.setenv(live.TOKEN, "x" * 16)
    assert live._token(None, "postgresql://host/name") == ("x" * 16, live.TOKEN)
    monkeypatch.delenv(live.TOKEN)
    with pytest.raises(ValueError, match="--token-file or the variable CLIPSILON_LIVE_TOKEN must be given"):
        live._token(None, "postgresql://host/name")


def test_live_is_imported_when_it_is_needed():
    code = "import sys, clipsilon as cs; assert 'clipsilon.live' not in sys.modules; cs.live.Stream"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert cs.live.Stream is Stream
