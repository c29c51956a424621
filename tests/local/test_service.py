"""The HTTP service: what it publishes, what it accepts, and that refused requests change nothing."""

import asyncio
import io
import json
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from threading import Event
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import clipsilon as cs
from clipsilon._core.http_server import Answer, Request
from clipsilon.local import server as server_module
from clipsilon.local import service

START, STEP = [0.0, 0.5], cs.schedules.Power(0.2, 0.5)


@pytest.fixture
def server(tmp_path):
    with cs.local.Server(tmp_path / "ledger.db", start=START, step=STEP, turn_seconds=3600) as opened:
        yield opened


@pytest.fixture
def url(server):
    with service.running(server) as address:
        yield address


def call(url, method, path, body=None, **more):
    """Return status, content and headers; a body that is not bytes is sent as JSON."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        raw = body if body is None or isinstance(body, bytes) or more else json.dumps(body).encode()
        connection.request(method, path, raw, **more)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers
    finally:
        connection.close()


def test_model_and_statement(server, url):
    status, content, _ = call(url, "GET", "/model")
    assert (status, content) == (200, {"version": 0, "theta": START, "average": START, "reports": 0})
    assert call(url, "GET", "/statement?delta=1e-5")[:2][0] == 422  # nobody yet
    server.apply("ann", 1.0, 0, [0.1, 0.2])
    server.apply("bob", 2.0, 1, [0.3, -0.2])
    content = call(url, "GET", "/model")[1]
    assert content == {"version": 2, "theta": server.theta.tolist(), "average": server.average.tolist(), "reports": 2}
    status, content, _ = call(url, "GET", "/statement?delta=1e-5")
    assert (status, content) == (200, server.statement(1e-5).summary())
    assert "ann" not in json.dumps(content)
    for query in ("", "?delta=", "?delta=x"):
        assert call(url, "GET", f"/statement{query}")[0] == 400
    for query in ("?delta=0", "?delta=2", "?delta=nan"):
        assert call(url, "GET", f"/statement{query}")[0] == 422


def test_a_turn_and_a_report(server, url):
    status, turn, _ = call(url, "POST", "/turn", {"user": "ann", "token": "t"})
    ticket = turn.pop("ticket")
    assert (status, turn) == (200, {"theta": START, "version": 0, "seconds": 3600})
    sent = {"user": "ann", "token": "t", "ticket": ticket, "version": 0, "mu": 1.5, "report": [0.1, -1.0 / 3.0]}
    assert call(url, "POST", "/report", sent)[:2] == (200, {"sequence": 1, "version": 0})
    assert server.theta.tolist() == (np.array(START) - 0.2 * np.array(sent["report"])).tolist()  # to the last bit
    status, content, _ = call(url, "POST", "/report", sent)  # the answer was lost: the same bytes again
    assert (status, content["code"], content["sequence"]) == (409, "applied", 1)
    status, content, _ = call(url, "POST", "/turn", {"user": "ann", "token": "new"})
    assert (status, content["code"]) == (409, "repeated")
    assert server.version == 1


GOOD = {"user": "bob", "token": "t", "ticket": "", "version": 1, "mu": 1.0, "report": [0.1, 0.2]}
TICKET = "the ticket"  # is replaced by bob's


def changed(**fields):
    return json.dumps({**GOOD, "ticket": TICKET, **fields}).encode()


BAD = {
    "nothing": (b"", 400),
    "not JSON": (b"{", 400),
    "not text": (b"\xff\xfe\xfd", 400),
    "a list": (b"[1, 2]", 400),
    "a number": (b"1", 400),
    "too deep": (b"[" * 3000, 400),
    "a field is missing": (json.dumps({k: v for k, v in GOOD.items() if k != "mu"}).encode(), 400),
    "ticket is a number": (changed(ticket=1), 400),
    "lost is a text": (changed(lost="1"), 422),
    "lost is negative": (changed(lost=-1.0), 422),
    "a record is in it": (changed(record=[[1.0, 2.0], 1]), 400),
    "report is a text": (changed(report="0.1, 0.2"), 400),
    "report of texts": (changed(report=["0.1", "0.2"]), 400),
    "report of lists": (changed(report=[[0.1], [0.2]]), 400),
    "report of truths": (changed(report=[True, False]), 400),
    "report of nothing": (changed(report=[None, 0.1]), 400),
    "token is a number": (changed(token=1), 400),
    "no token": (changed(token=None), 400),
    "nan": (changed(report=[float("nan"), 0.1]), 422),
    "infinite": (changed(report=[float("inf"), 0.1]), 422),
    "beyond floating point": (changed(report=[0.1, 0.2]).replace(b"0.2", b"1e999"), 422),
    "an integer beyond it": (changed(report=[10**400, 1]), 422),
    "an integer beyond reading": (changed(report=[0.1, 0.2]).replace(b"0.2", b"1" * 4000 + b"." + b"1" * 9), 422),
    "too short": (changed(report=[0.1]), 422),
    "too long": (changed(report=[0.1] * 3), 422),
    "empty": (changed(report=[]), 422),
    "mu of zero": (changed(mu=0), 422),
    "negative mu": (changed(mu=-1.0), 422),
    "mu is nan": (changed(mu=float("nan")), 422),
    "mu is a text": (changed(mu="1.0"), 422),
    "mu is a truth": (changed(mu=True), 422),
    "version is a text": (changed(version="1"), 422),
    "version is a fraction": (changed(version=1.0), 422),
    "negative version": (changed(version=-1), 422),
    "user is a number": (changed(user=7), 422),
    "no name": (changed(user=""), 422),
    "a long name": (changed(user="b" * 201), 422),
    "half a character": (changed(user="\ud800"), 422),
    "a line break": (changed(user="b\nob"), 422),
    "oversized": (changed(user="b" * 5000), 413),
    "replayed": (changed(user="ann", version=0), 409),
    "replayed at the new version": (changed(user="ann"), 409),
    "stale": (changed(version=0), 409),
    "from the future": (changed(version=2), 409),
    "another token": (changed(token="u"), 409),
    "another user": (changed(user="eve"), 409),
    "another ticket": (changed(ticket="1.2.3"), 409),
    "no ticket": (changed(ticket=""), 409),
}


def test_refused_requests_change_nothing(server, url):
    """All while bob holds the turn, which he keeps."""
    server.apply("ann", 1.0, 0, [0.1, 0.2])
    ticket = call(url, "POST", "/turn", {"user": "bob", "token": "t"})[1]["ticket"]
    before = server.state
    for case, (body, expected) in BAD.items():
        status, content, _ = call(url, "POST", "/report", body.replace(TICKET.encode(), ticket.encode()))
        assert status == expected, (case, content)
        assert content["error"].endswith(".")
        assert content["code"]
        assert server.state is before, case
    assert server._ledger.budgets() == [("ann", 1.0, 0.0)]
    assert call(url, "POST", "/report", {**GOOD, "ticket": ticket})[:2] == (200, {"sequence": 2, "version": 1})


def test_bad_requests_for_turns(server, url):
    for body, expected in [
        (b"{", 400),
        ({"user": "ann"}, 400),
        ({"user": "ann", "token": "t", "record": [1.0]}, 400),
        ({"user": "ann", "token": 7}, 422),
        ({"user": "ann", "token": ""}, 422),
        ({"user": None, "token": "t"}, 422),
        ({"user": "a" * 9000, "token": "t"}, 413),
    ]:
        assert call(url, "POST", "/turn", body)[0] == expected
    assert server.turn_left() == 0.0  # nobody has it
    assert call(url, "GET", "/turn")[0] == 405
    assert call(url, "GET", "/nothing")[0] == 404


def test_a_body_in_pieces_is_refused(server, url):
    pieces = iter([b"x" * 1000] * 5)
    assert call(url, "POST", "/report", pieces, encode_chunked=True, headers={"Transfer-Encoding": "chunked"})[0] == 411


def test_a_body_that_ends_early(server, url):
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port)) as connection:
        connection.sendall(
            b"POST /report HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n" + json.dumps(GOOD).encode()
        )
    assert call(url, "GET", "/model")[1]["version"] == 0


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """Return a server in which bob holds the turn, with the ticket."""
    path = tmp_path_factory.mktemp("fuzz") / "ledger.db"
    with cs.local.Server(path, start=START, step=STEP, turn_seconds=3600) as server:
        server.apply("ann", 1.0, 0, [0.1, 0.2])
        yield server, server.turn("bob", "t").ticket


def post(server, path, body):
    """Send one request without a socket, and return the status."""

    async def work():
        handler = service.Service(server)
        stop = await handler.start()
        answer = handler.handle(Request("POST", path, "", {}, body))
        answer = answer if isinstance(answer, Answer) else await answer
        await stop()
        return answer.status

    return asyncio.run(work())


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_other_report_gets_through(waiting, data):
    """One field, or the whole body, is arbitrary."""
    server, ticket = waiting
    good = {**GOOD, "ticket": ticket}
    field = data.draw(st.sampled_from([*good, None]))
    if field is None:
        body = data.draw(st.binary(max_size=300) | anything.map(lambda value: json.dumps(value).encode()))
    else:
        value = data.draw(anything)
        if field in ("mu", "report"):  # these may be other numbers of the right kind
            value = data.draw(st.just(value) | st.lists(st.sampled_from([np.nan, np.inf, 1.0]), min_size=2, max_size=2))
        body = json.dumps({**good, field: value}).encode()
        right = (
            field == "mu" and isinstance(value, int | float) and not isinstance(value, bool) and 1e-6 <= value <= 1e6
        )
        numbers = isinstance(value, list) and len(value) == 2 and all(type(x) in (int, float) for x in value)
        if right or value == good[field] or (numbers and np.isfinite(np.array(value, dtype=float)).all()):
            return
    before = server.state
    assert 400 <= post(server, "/report", body) < 500
    assert server.state is before
    assert server._ledger.budgets() == [("ann", 1.0, 0.0)]


def test_other_users_are_asked_to_retry(server, url, monkeypatch):
    monkeypatch.setattr(service, "WAIT", 0.01)
    call(url, "POST", "/turn", {"user": "ann", "token": "t"})
    status, content, headers = call(url, "POST", "/turn", {"user": "bob", "token": "u"})
    assert (status, content["code"], headers["Retry-After"]) == (503, "busy", "1")
    assert call(url, "POST", "/turn", {"user": "ann", "token": "t"})[0] == 200


def test_a_waiting_user_is_served_when_the_turn_ends(server, url, monkeypatch):
    monkeypatch.setattr(service, "WAIT", 60.0)
    ticket = call(url, "POST", "/turn", {"user": "ann", "token": "t"})[1]["ticket"]
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(call, url, "POST", "/turn", {"user": user, "token": user}) for user in ("bob", "eve")]
        call(url, "POST", "/report", {**GOOD, "user": "ann", "version": 0, "ticket": ticket})
        while not any(one.done() for one in asked):  # exactly one of them is next
            pass
        first = 0 if asked[0].done() else 1
        assert asked[first].result()[1]["version"] == 1
        assert not asked[1 - first].done()
        user = ("bob", "eve")[first]
        ticket = asked[first].result()[1]["ticket"]
        call(url, "POST", "/report", {**GOOD, "user": user, "token": user, "ticket": ticket})
        assert asked[1 - first].result()[1]["version"] == 2


def test_a_user_who_has_reported_does_not_queue(server, url, monkeypatch):
    monkeypatch.setattr(service, "WAIT", 60.0)
    server.apply("bob", 1.0, 0, [0.1, 0.2])
    ticket = call(url, "POST", "/turn", {"user": "ann", "token": "t"})[1]["ticket"]
    arrived, turn = Event(), server.turn
    monkeypatch.setattr(server, "turn", lambda user, token: arrived.set() or turn(user, token))
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(call, url, "POST", "/turn", {"user": "eve", "token": "u"})
        assert arrived.wait(60)
        assert call(url, "POST", "/turn", {"user": "bob", "token": "v"})[1]["code"] == "repeated"
        assert not waits.done()
        call(url, "POST", "/report", {**GOOD, "user": "ann", "ticket": ticket})
        assert waits.result()[0] == 200


def test_an_unused_turn_goes_to_the_next_user(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "WAIT", 60.0)
    monkeypatch.setattr(server_module, "_TRANSIT", 0.0)
    with (
        cs.local.Server(tmp_path / "l", start=START, step=STEP, turn_seconds=0.05) as server,
        service.running(server) as url,
    ):
        ticket = call(url, "POST", "/turn", {"user": "ann", "token": "t"})[1]["ticket"]
        server.turn_seconds = 3600
        assert call(url, "POST", "/turn", {"user": "bob", "token": "u"})[1]["version"] == 0
        late = call(url, "POST", "/report", {**GOOD, "user": "ann", "version": 0, "ticket": ticket})
        assert (late[0], late[1]["code"]) == (409, "stale")
        assert server.version == 0


def test_a_closed_ledger_is_a_server_error(server, url):
    server.close()
    status, content, headers = call(url, "POST", "/turn", {"user": "ann", "token": "t"})
    assert (status, content["code"], headers["Retry-After"]) == (503, "closed", "1")
    assert call(url, "GET", "/model")[0] == 200


def test_existing_log_handlers_stay_open(tmp_path):
    """Configuring logging again would close every existing handler, and some handlers close their stream."""
    stream = io.StringIO()

    class Closing(logging.StreamHandler):
        def close(self):
            self.stream.close()
            super().close()

    handler = Closing(stream)
    step = cs.schedules.Power(0.2, 0.5)
    with cs.local.Server(tmp_path / "ledger.db", start=[0.0], step=step) as server, service.running(server):
        assert not stream.closed
    handler.close()
