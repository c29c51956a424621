"""The server: it applies reports as the engine does, once each, and its ledger survives failures."""

import json
import math
import sqlite3
import stat
import subprocess
import sys

import numpy as np
import pytest

import clipsilon as cs
import reference
from clipsilon.engine.streams import spawn
from clipsilon.local import server as server_module
from clipsilon.local.enrolment import enrolment_token
from clipsilon.local.ledger import open_ledger
from clipsilon.local.server import Submission
from clipsilon.privacy.accounting import gaussian

STEP = cs.schedules.Power(0.2, 0.5)
LOSS = cs.losses.MallowsLogistic()


@pytest.fixture
def opened(tmp_path):
    """Return a function that reopens the same ledger; none is left open."""
    servers = []

    def open_server(**changes):
        for server in servers:
            server.close()
        arguments = {"start": [0.0, 0.5], "step": STEP, **changes}
        servers.append(cs.local.Server(tmp_path / "ledger.db", **arguments))
        return servers[-1]

    yield open_server
    for server in servers:
        server.close()


def same(state, other):
    """Bit by bit."""
    return (state.version, state.theta.tobytes(), state.average.tobytes()) == (
        other.version,
        other.theta.tobytes(),
        other.average.tobytes(),
    )


@pytest.mark.parametrize(
    ("loss", "region"), [(LOSS, cs.regions.Ball(0.8)), (cs.losses.HuberRegression(c=1.2), None)], ids=["ball", "free"]
)
def test_reports_of_devices_reproduce_the_engine(tmp_path, loss, region):
    """The same users in the same order with the same noise: θ and the average as in LDPSGD and LDPASGD."""
    response, seed = cs.responses.BestResponse(beta=0.3), 4
    problem = reference.problem(loss, response, region, records=40)
    budgets = np.random.default_rng(1).uniform(1, 3, problem.records)
    streams = spawn(seed, 1)[0]
    sampler = reference.Sampler(cs.sampling.SinglePass(1), problem.records, streams.records)
    order = [sampler.batch(t)[0] for t in range(problem.records)]
    thetas = reference.run(problem, cs.LDPSGD(STEP, budgets), problem.records, 0.1, seed)[0]
    with cs.local.Server(tmp_path / "l", start=np.full(problem.dimension, 0.1), step=STEP, region=region) as server:
        for t, i in enumerate(order):
            np.testing.assert_allclose(server.theta, thetas[t], rtol=1e-12, atol=1e-12)
            record = problem.features[i], problem.labels[i]
            sent = cs.local.report(server.theta, record, loss, budgets[i], response, streams.noise)
            server.apply(f"user {i}", budgets[i], server.version, sent)
        last, average = server.theta, server.average
    trace = cs.run(problem, cs.LDPASGD(STEP, budgets), steps=problem.records, start=0.1, seed=seed)
    np.testing.assert_allclose(last, trace.theta[0, -1], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(average, trace.output[0], rtol=1e-12, atol=1e-12)


def test_reopening_loses_and_doubles_nothing(opened):
    server = opened()
    reports = np.random.default_rng(0).standard_normal((20, 2))
    for k, sent in enumerate(reports):
        if k % 7 == 3:
            before, server = server.state, opened()
            assert same(before, server.state)
        assert server.apply(f"user {k}", 1.0, k, sent) == k + 1
    assert same(server.state, server.replay())
    assert same(server.state, cs.local.replay(reports, [0.0, 0.5], STEP))


def test_theta_by_hand(opened):
    server = opened(step=cs.schedules.Constant(0.5), region=cs.regions.Box(-1, 1))
    server.apply("ann", 1.0, 0, [1.0, 1.0])
    server.apply("bob", 1.0, 1, [4.0, -1.0])
    assert server.theta.tolist() == [-1.0, 0.5]  # −0.5 − 2 is outside
    assert server.average.tolist() == [-0.75, 0.25]
    with pytest.raises(ValueError, match="read-only"):
        server.theta[0] = 1.0


REFUSED = {
    "no report": ({"report": None}, "report must hold numbers only"),
    "text": ({"report": ["a", "b"]}, "report must hold numbers only"),
    "too short": ({"report": [1.0]}, "report must be a list of 2 number\\(s\\), got shape \\(1,\\)"),
    "one number": ({"report": 1.0}, "report must be a list of 2 number\\(s\\), got shape \\(\\)"),
    "a table": ({"report": [[1.0, 1.0]]}, "report must be a list of 2 number"),
    "nan": ({"report": [np.nan, 1.0]}, "report must be finite"),
    "infinite": ({"report": [1.0, -np.inf]}, "report must be finite"),
    "overflow": ({"report": [1.7e308, 1.0], "step": 10.0}, "report must leave θ finite"),
    "mu of zero": ({"mu": 0.0}, "mu must be a number from 1e-06"),
    "negative mu": ({"mu": -1.0}, "mu must be a number from 1e-06"),
    "boundless mu": ({"mu": math.inf}, "mu must be a finite number"),
    "mu as text": ({"mu": "1"}, "mu must be a finite number"),
    "old version": ({"version": 0}, "version must be the current one, 1, got 0"),
    "future version": ({"version": 2}, "version must be the current one, 1, got 2"),
    "negative version": ({"version": -1}, "version must be a whole number"),
    "half a version": ({"version": 1.5}, "version must be a whole number"),
    "second report": ({"user": "ann"}, "user 'ann' has already reported; one report per user is accepted"),
    "nobody": ({"user": ""}, "user must be 1 to 200 printable characters, got ''"),
    "a long name": ({"user": "a" * 201}, "user must be 1 to 200 printable characters"),
    "half a character": ({"user": "\ud800"}, "user must be 1 to 200 printable characters"),
    "not a name": ({"user": 7}, "user must be 1 to 200 printable characters, got 7"),
    "a turn that was not given": ({"token": "t"}, "user 'bob' does not hold the current turn, or the token is wrong"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_reports_change_nothing(opened, case):
    changes, message = REFUSED[case]
    changes = dict(changes)
    server = opened(step=cs.schedules.Constant(changes.pop("step", 0.5)))
    server.apply("ann", 1.0, 0, [1.0, 1.0])
    before = server.state
    arguments = {"user": "bob", "mu": 1.0, "version": 1, "report": [0.1, 0.2], **changes}
    with pytest.raises(ValueError, match=message):
        server.apply(**arguments)
    assert server.state is before
    assert same(before, server.replay())


def test_a_resent_report_is_recognised(opened):
    opened().apply("ann", 1.0, 0, [1.0, 1.0])
    server = opened()
    with pytest.raises(cs.local.RefusalError, match="has already been applied, as number 1") as caught:
        server.apply("ann", 1.0, 0, [1.0, 1.0])
    assert (caught.value.code, caught.value.sequence) == ("applied", 1)
    others = {"repeated": [{"report": [1.0, 1.0 + 1e-15]}, {"mu": 1.5}, {"lost": 0.1}], "stale": [{"user": "bob"}]}
    for code, changes in others.items():  # not the same report
        for other in changes:
            with pytest.raises(cs.local.RefusalError) as caught:
                server.apply(**{"user": "ann", "mu": 1.0, "version": 0, "report": [1.0, 1.0], **other})
            assert caught.value.code == code
    assert server.version == 1


def test_repeats_compose_on_request(opened):
    server = opened(repeats="compose")
    for user, mu in [("ann", 1.0), ("bob", 0.5), ("ann", 2.0)]:
        server.apply(user, mu, server.version, [0.1, 0.1])
    statement = server.statement(delta=1e-5)
    assert statement.users == ("ann", "bob")
    ann = statement.of("ann")
    assert ann["reports"] == 2
    assert ann["mu"] == pytest.approx(math.sqrt(5))
    assert ann["epsilon"] == pytest.approx(gaussian.epsilon(math.sqrt(5), 1e-5))
    assert statement.summary()["users_with_several_reports"] == 1
    assert statement.summary()["most_mu"] == ann["mu"]


def test_forms_of_a_name_are_one_user(opened):
    """é as one character, and as e with an accent (NFC and NFD)."""
    server, names = opened(), ["Jos\u00e9", "Jose\u0301"]
    server.apply(names[1], 1.0, 0, [0.1, 0.1])
    for name in names:
        with pytest.raises(cs.local.RefusalError, match="has already reported"):
            server.apply(name, 1.0, 1, [0.2, 0.1])
        assert server.statement(1e-5).of(name)["user"] == names[0]
    assert len({enrolment_token(b"secret", name) for name in names}) == 1


def test_a_ticket_is_for_one_report(opened):
    server = opened(repeats="compose", batch=4, weights="equal")
    turn = server.turn("eve", "t")
    sent = [Submission("eve", 1.0, 0, [0.1, k / 10], "t", turn.ticket) for k in range(3)]
    answers = [*server.apply_many(sent[:2]), *server.apply_many(sent[:1]), *server.apply_many(sent[2:])]
    assert [getattr(one, "code", "accepted") for one in answers] == ["accepted", "stale", "applied", "stale"]
    assert server.turn("eve", "new") is None  # before anything leaves the device
    server = opened(repeats="compose", batch=4, weights="equal")
    assert server.apply_many(sent[1:2])[0].code == "stale"
    for user in "abc":
        server.apply(user, 1.0, 0, [0.1, 0.1])
    turn = server.turn("eve", "new")
    assert server.apply("eve", 1.0, 1, [0.1, 0.1], "new", turn.ticket) == 5


def test_any_failure_in_a_transaction_stops_the_server(opened, monkeypatch):
    """Not only one of the ledger: state and position might differ."""
    server = opened()
    with monkeypatch.context() as patch:
        patch.setattr(server_module, "check_reach", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            server.apply("ann", 1.0, 0, [0.1, 0.1])
    assert server.is_stopped
    with pytest.raises(cs.local.LedgerError, match="division by zero"):
        server.apply("ann", 1.0, 0, [0.1, 0.1])
    server.reopen()
    assert server.apply("ann", 1.0, 0, [0.1, 0.1]) == 1


@pytest.mark.parametrize("lost", [1.001e6, 1e200, 1.7e308])
def test_a_large_lost_budget_is_refused(opened, lost):
    """Otherwise one stranger could make the statement fail, or state ε = ∞, which JSON does not know."""
    server = opened(repeats="compose")
    server.apply("ann", 1.0, 0, [0.1, 0.1])
    with pytest.raises(ValueError, match="mu with lost must be a number from 1e-06 to 1e\\+06"):
        server.apply("eve", 1.0, 1, [0.1, 0.1], lost=lost)
    for version in (1, 2):
        server.apply("eve", 1.0, version, [0.1, 0.1], lost=9.99e5)  # the most, twice
    stated = json.loads(server.statement(1e-5).to_json(), parse_constant=pytest.fail)["each"]
    assert stated["ann"]["mu"] == 1.0
    assert stated["eve"]["mu"] == pytest.approx(9.99e5 * math.sqrt(2))


def test_statement_of_single_reports(opened):
    server = opened()
    with pytest.raises(ValueError, match="ledger must hold at least one report, got none"):
        server.statement(delta=1e-5)
    budgets = [0.5, 1.0, 2.0]
    for user, mu in zip("abc", budgets, strict=True):
        server.apply(user, mu, server.version, [0.1, 0.1])
    statement, alone = server.statement(delta=1e-5), cs.account_users(budgets, delta=1e-5)
    assert [statement.of(user)["epsilon"] for user in "abc"] == alone.epsilons.tolist()
    assert {name: statement.summary()[name] for name in alone.summary()} == alone.summary()
    assert json.loads(statement.to_json())["each"]["b"] == {"reports": 1, "mu": 1.0, "epsilon": alone.epsilons[1]}
    assert "3 reports from 3 users, 0 of whom sent several" in str(statement)
    with pytest.raises(ValueError, match="user must be one who reported, got 'd'"):
        statement.of("d")


def test_turns(opened):
    server = opened(turn_seconds=3600)
    turn = server.turn("ann", "secret")
    assert (turn.version, turn.theta.tolist(), turn.seconds) == (0, [0.0, 0.5], 3600)
    assert server.turn("bob", "other") is None
    assert server.turn("ann", "another device") is None
    assert server.turn("ann", "secret").version == 0  # the answer was lost: she asks again
    for wrong in ({"token": "other"}, {"token": None}, {"user": "bob", "token": "secret"}):
        with pytest.raises(cs.local.RefusalError, match="does not hold the current turn") as caught:
            server.apply(**{"user": "ann", "mu": 1.0, "version": 0, "report": [1.0, 1.0], **wrong})
        assert caught.value.code == "stale"
    assert server.apply("ann", 1.0, 0, [1.0, 1.0], token="secret") == 1
    assert server.turn("bob", "other").version == 1
    with pytest.raises(cs.local.RefusalError, match="has already reported") as caught:
        server.turn("ann", "new")
    assert caught.value.code == "repeated"


def test_a_ticket_survives_a_restart(opened):
    ticket = opened(turn_seconds=3600).turn("ann", "secret").ticket
    server = opened(turn_seconds=3600)
    for wrong in ({"token": "other"}, {"user": "bob"}, {"version": 1}, {"ticket": f"1{ticket}"}, {"ticket": "."}):
        good = {"user": "ann", "mu": 1.0, "version": 0, "report": [1.0, 1.0], "token": "secret", "ticket": ticket}
        with pytest.raises(cs.local.RefusalError) as caught:
            server.apply(**{**good, **wrong})
        assert caught.value.code == "stale"
    assert server.apply("ann", 1.0, 0, [1.0, 1.0], token="secret", ticket=ticket) == 1
    assert opened().turn("bob", "other").version == 1


@pytest.fixture
def clock(monkeypatch):
    """Return a list of one number: what the server takes for the time."""
    now = [1000.0]
    monkeypatch.setattr(server_module.time, "time", lambda: now[0])
    return now


def test_an_expired_turn_goes_to_the_next_user(opened, clock):
    server = opened(turn_seconds=10)
    server.turn("ann", "secret")
    assert server.turn_left() == 10.0
    clock[0] += 8.0
    assert server.turn("ann", "secret").seconds == 2.0  # asking again does not extend it
    clock[0] += 4.0
    assert server.turn_left() == 0.0
    assert server.turn("ann", "secret") is None  # she let it end, and others are first
    assert server.turn("bob", "other").version == 0
    with pytest.raises(cs.local.RefusalError, match="does not hold the current turn"):
        server.apply("ann", 1.0, 0, [1.0, 1.0], token="secret")
    assert server.version == 0
    clock[0] += 12.0
    ticket = server._places.of("bob").ticket
    assert (
        server.apply("bob", 1.0, 0, [1.0, 1.0], token="other", ticket=ticket) == 1
    )  # late, but nobody else has a turn
    with pytest.raises(cs.local.RefusalError, match="does not hold the current turn"):
        server.apply("ann", 1.0, 0, [1.0, 1.0], token="secret")
    assert server.turn("ann", "new").version == 1


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"start": [0.0, 0.6]}, "start"),
        ({"start": [0.0, 0.5, 0.0]}, "start"),
        ({"step": cs.schedules.Power(0.2, 0.6)}, "step"),
        ({"step": cs.schedules.Constant(0.2)}, "step"),
        ({"region": cs.regions.Ball(1.0)}, "region"),
        ({"repeats": "compose"}, "repeats"),
    ],
)
def test_a_ledger_of_another_run_is_refused(opened, changes, name):
    opened().apply("ann", 1.0, 0, [1.0, 1.0])
    with pytest.raises(cs.local.LedgerError, match=f"is the ledger of another run: its {name} is"):
        opened(**changes)
    assert opened().version == 1


def test_one_server_at_a_time(opened, tmp_path):
    server = opened()
    with pytest.raises(cs.local.LedgerError, match="is in use"):
        cs.local.Server(tmp_path / "ledger.db", start=[0.0, 0.5], step=STEP)
    elsewhere = "import sys; from clipsilon.local.ledger import open_ledger; open_ledger(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", elsewhere, tmp_path / "ledger.db"], capture_output=True, text=True, check=False
    )
    assert "LedgerError" in done.stderr
    assert "is in use" in done.stderr
    assert server.apply("ann", 1.0, 0, [1.0, 1.0]) == 1


def test_a_report_is_on_disk_when_it_is_accepted(opened):
    database = opened()._ledger._database
    assert database.run("PRAGMA synchronous") == [(2,)]  # FULL
    assert database.run("PRAGMA journal_mode") == [("wal",)]


def test_the_file_is_for_its_owner_only(opened, tmp_path):
    opened().apply("ann", 1.0, 0, [1.0, 1.0])
    files = list(tmp_path.iterdir())
    assert len(files) == 3  # the ledger, its log and its witness
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_file_that_is_not_a_ledger_is_not_modified(tmp_path):
    text, other = tmp_path / "text", tmp_path / "other.db"
    text.write_text("this is not a database\n" * 100)
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE mine (number)")
    database.close()
    for path in (text, other):
        before = path.read_bytes()
        with pytest.raises(cs.local.LedgerError, match="not a (ledger|database)"):
            cs.local.Server(path, start=[0.0], step=STEP)
        assert path.read_bytes() == before
    with pytest.raises(cs.local.LedgerError, match="No such file"):
        cs.local.Server(tmp_path / "nowhere" / "ledger.db", start=[0.0], step=STEP)
    with pytest.raises(cs.local.LedgerError, match="No such file"):
        open_ledger(tmp_path / "missing.db")
    assert not (tmp_path / "missing.db").exists()


DAMAGE = {
    "a report is missing": "DELETE FROM report WHERE sequence = 2",
    "a report is cut": "UPDATE report SET content = x'0011' WHERE sequence = 2",
    "a report is too short": "UPDATE report SET content = x'000000000000F03F' WHERE sequence = 2",
    "a report is not finite": "UPDATE report SET content = x'000000000000F07F000000000000F07F' WHERE sequence = 2",
    "a report is a text": "UPDATE report SET content = 'abc' WHERE sequence = 2",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_ledger_is_refused(opened, tmp_path, damage):
    server = opened()
    for k in range(3):
        server.apply(f"user {k}", 1.0, k, [1.0, 1.0])
    server.close()
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        database.execute(DAMAGE[damage])
    database.close()
    with pytest.raises(cs.local.LedgerError, match="is damaged"):
        opened()


def test_a_ledger_that_cannot_be_written_stops_the_server(opened, tmp_path):
    """A failed write may be on disk or not, so nothing is accepted until the ledger is reopened."""
    server = opened()
    server.apply("ann", 1.0, 0, [1.0, 1.0])
    before = server.state
    server._ledger._database.run(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON report BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    )
    with pytest.raises(cs.local.LedgerError, match="cannot be read or written \\(disk full\\), so it was closed"):
        server.apply("bob", 1.0, 1, [1.0, 1.0])
    for call in (lambda: server.apply("bob", 1.0, 1, [1.0, 1.0]), lambda: server.turn("bob", "t"), server.replay):
        with pytest.raises(cs.local.LedgerError):
            call()
    assert server.state is before
    assert same(before, opened().state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": []}, "start must be a list of 1 number"),
        ({"start": 1.0}, "start must be a list of 1 number"),
        ({"start": [np.nan]}, "start must be finite"),
        ({"repeats": "ignore"}, "repeats must be one of 'refuse', 'compose', got 'ignore'"),
        ({"turn_seconds": 0}, "turn_seconds must be a number above 0"),
    ],
)
def test_wrong_settings(opened, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        opened(**changes)
    assert not list(tmp_path.iterdir())


def test_parts_of_the_wrong_kind(tmp_path):
    with pytest.raises(TypeError, match="step must be a part"):
        cs.local.Server(tmp_path / "l", start=[0.0], step=0.1)
    with pytest.raises(TypeError, match="region Power does not implement project"):
        cs.local.Server(tmp_path / "l", start=[0.0], step=STEP, region=STEP)
