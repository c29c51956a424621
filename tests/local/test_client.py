"""The client: it sends one report, even if answers are lost, and states all that was spent."""

import importlib
import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import clipsilon as cs
from clipsilon._core import http_server
from clipsilon.local import Client, service
from clipsilon.local.ledger import Entry
from clipsilon.local.tickets import Places

LOSS, STEP, RECORD = cs.losses.MallowsLogistic(), cs.schedules.Power(0.2, 0.5), ([0.3, -0.7], 1)


class Lossy(Client):
    """A client that loses answers: `lost` holds how many, by path."""

    def __init__(self, url, **lost):
        super().__init__(url)
        self.lost, self.bodies = lost, []

    def _request(self, method, path, body=None):
        self.bodies.append((path, body))
        answer = super()._request(method, path, body)
        if self.lost.get(path[1:], 0) > 0 and answer is not None:
            self.lost[path[1:]] -= 1
            return None
        return answer


@pytest.fixture
def server(tmp_path):
    with cs.local.Server(tmp_path / "ledger.db", start=[0.0, 0.5], step=STEP, turn_seconds=3600) as opened:
        yield opened


@pytest.fixture
def url(server):
    with service.running(server) as address:
        yield address


def entries(server):
    return [event for event in server._ledger.events() if isinstance(event, Entry)]


def test_taking_part(server, url):
    client = Client(url + "/")
    assert client.take_part("ann", RECORD, LOSS, mu=2.0) == (1, 2.0)
    assert client.take_part("bob", RECORD, LOSS, mu=0.5) == (2, 0.5)
    model = client.model()
    assert model.version == 2
    assert model.theta.tolist() == server.theta.tolist()
    assert model.average.tolist() == server.average.tolist()
    assert client.statement(1e-5) == server.statement(1e-5).summary()
    assert [(entry.user, entry.mu) for entry in entries(server)] == [("ann", 2.0), ("bob", 0.5)]
    with pytest.raises(ValueError, match="The server refused /statement.*: delta must be a number above 0 and below 1"):
        client.statement(2.0)


def test_the_record_reacts_to_the_published_model(server, url, monkeypatch):
    server.apply("first", 1.0, 0, [-3.0, 1.0])
    seen = []
    module = importlib.import_module("clipsilon.local.client")
    monkeypatch.setattr(module, "report", lambda *arguments: seen.append(arguments) or np.array([0.5, 0.5]))
    response = cs.responses.BestResponse(beta=0.3)
    before = server.theta
    Client(url).take_part("ann", RECORD, LOSS, 1.5, response)
    ((theta, *rest),) = seen
    assert theta == before.tolist()
    assert rest == [RECORD, LOSS, 1.5, response]
    assert entries(server)[1].report.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("lost", [{"turn": 2}, {"report": 1}, {"report": 3, "turn": 1}], ids=str)
def test_lost_answers_lead_to_one_report(server, url, lost):
    client = Lossy(url, **lost)
    assert client.take_part("ann", RECORD, LOSS, mu=2.0) == (1, 2.0)
    assert server.version == 1
    sent = {body for path, body in client.bodies if path == "/report"}
    assert len(sent) == 1
    assert json.loads(sent.pop())["report"] == entries(server)[0].report.tolist()


def test_a_second_report_is_refused_before_anything_leaves(server, url, monkeypatch):
    client = Client(url)
    client.take_part("ann", RECORD, LOSS, mu=2.0)
    with pytest.raises(ValueError, match="again must be True for a second release of user 'ann', got False"):
        client.take_part("ann", RECORD, LOSS, mu=2.0)  # the device refuses without asking the server
    module = importlib.import_module("clipsilon.local.client")
    monkeypatch.setattr(module, "report", lambda *_: pytest.fail("a report was made"))
    for other, again in [(client, True), (Client(url), False)]:
        with pytest.raises(
            cs.local.TurnError, match="before a report left the device: user 'ann' has already reported"
        ):
            other.take_part("ann", RECORD, LOSS, mu=2.0, again=again)


def test_the_budget_of_a_late_report_is_spent(server, url, monkeypatch):
    client = Client(url)
    with monkeypatch.context() as patch:
        turn = Client._turn
        patch.setattr(Client, "_turn", lambda self, user: (turn(self, user)[0], "another token"))
        with pytest.raises(
            cs.local.BudgetSpentError, match="left the device, so μ = 2 is spent.*does not hold the current turn"
        ):
            client.take_part("ann", RECORD, LOSS, mu=2.0)
    assert server.version == 0
    server._places = Places(overbooks=False)  # her turn is over
    with pytest.raises(ValueError, match="again must be True"):
        client.take_part("ann", RECORD, LOSS, mu=1.5)
    assert client.take_part("ann", RECORD, LOSS, mu=1.5, again=True) == (1, 2.5)  # √(2² + 1.5²) is stated
    assert server.statement(1e-5).of("ann")["mu"] == 2.5


def test_taking_part_again_where_repeats_compose(tmp_path):
    with (
        cs.local.Server(tmp_path / "l", start=[0.0, 0.5], step=STEP, repeats="compose") as server,
        service.running(server) as url,
    ):
        client = Client(url)
        for mu in (1.0, 2.0, 2.0):
            client.take_part("ann", RECORD, LOSS, mu, again=True)
        assert [entry.mu for entry in entries(server)] == [1.0, 2.0, 2.0]
        assert server.statement(1e-5).of("ann")["mu"] == pytest.approx(3.0)


def test_a_turn_that_may_have_expired_is_not_used(tmp_path):
    with (
        cs.local.Server(tmp_path / "l", start=[0.0, 0.5], step=STEP, turn_seconds=1e-5) as server,
        service.running(server) as url,
    ):
        client = Lossy(url)
        client.patience = 0.05
        with pytest.raises(cs.local.NoAnswerError, match="no report has left the device"):
            client.take_part("ann", RECORD, LOSS, mu=2.0)
        assert {path for path, _ in client.bodies} == {"/turn"}
        server.turn_seconds, server._places = 3600.0, Places(overbooks=False)
        assert client.take_part("ann", RECORD, LOSS, mu=2.0) == (1, 2.0)  # and no budget was wasted


def test_without_an_answer_the_same_report_is_sent_later(server):
    with service.running(server) as url:
        client = Lossy(url, report=10**9)
        client.patience = 0.05
        with pytest.raises(cs.local.NoAnswerError, match="may have been applied. Call take_part again"):
            client.take_part("ann", RECORD, LOSS, mu=2.0)
    with pytest.raises(cs.local.NoAnswerError, match="may have been applied"):  # the server is gone
        client.take_part("ann", RECORD, LOSS, mu=2.0)
    with service.running(server, port=client._port):
        client.lost = {}
        assert client.take_part("ann", object(), LOSS, mu=2.0) == (1, 2.0)  # the record is not read again
    assert server.version == 1
    assert len({body for path, body in client.bodies if path == "/report"}) == 1


def test_without_a_server_nothing_leaves(tmp_path):
    with http_server.listen("127.0.0.1", 0) as listener:
        url = http_server.address(listener)
    client = Client(url, patience=0.05)
    with pytest.raises(
        cs.local.NoAnswerError,
        match="No turn for user 'ann' within 0.05 seconds \\(connection refused\\); no report has left",
    ):
        client.take_part("ann", RECORD, LOSS, mu=2.0)
    with pytest.raises(
        cs.local.NoAnswerError, match="No answer to /model within 0.05 seconds \\(connection refused\\)"
    ):
        client.model()


class Scripted(Client):
    """A client that takes its answers from a list."""

    def __init__(self, *answers):
        super().__init__("http://nowhere")
        self.answers = [importlib.import_module("clipsilon.local.client")._Answer(*answer) for answer in answers]

    def _request(self, method, path, body=None):
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ({}, "seconds must be a finite number, got None"),
        ({"seconds": 60, "version": 0}, "theta must hold numbers only, got NoneType"),
        ({"seconds": 60, "version": 0, "theta": [0.0] * 3}, "record must have the length for the service's model of 3"),
        ({"seconds": 60, "version": 0, "theta": [0.0, 1e300]}, "theta must not hold numbers beyond"),
        ({"seconds": 60, "version": 0, "theta": [0.0, 0.0]}, "ticket must be a string, got NoneType"),
        ({"seconds": 60, "theta": [0.0, 0.0], "ticket": "t"}, "version must be a whole number of at least 0, got None"),
    ],
)
def test_a_malformed_turn_gets_no_report(turn, message):
    client = Scripted((200, turn))
    with pytest.raises(ValueError, match=message):
        client.take_part("ann", RECORD, LOSS, mu=2.0)
    assert client.answers == []
    assert client.spent("ann") == 0.0


def test_a_server_that_keeps_answering_stale():
    """It gets a second report only on the user's request, and then the sum is stated."""
    turn, done = (200, {"seconds": 60, "version": 0, "theta": [0.0, 0.0], "ticket": "t"}), (200, {"sequence": 5})
    stale = 409, {"code": "stale", "error": "Too late."}
    client = Scripted(turn, stale, turn, (422, {}), turn, done, turn, done)
    for again in (False, True):
        with pytest.raises(cs.local.BudgetSpentError, match="Pass again=True to send another report"):
            client.take_part("ann", RECORD, LOSS, 1.0, again=again)
        with pytest.raises(ValueError, match="again must be True"):
            client.take_part("ann", RECORD, LOSS, 1.0)
    assert client.take_part("ann", RECORD, LOSS, 1.0, again=True) == (5, pytest.approx(math.sqrt(3)))
    assert client.take_part("ann", RECORD, LOSS, 1.0, again=True) == (5, 1.0)  # what was lost is in the ledger now


def test_an_answer_without_a_number_clears_nothing():
    """The report may be in the ledger: it is sent again, and earlier lost budgets are still stated."""
    turn, stale = (200, {"seconds": 60, "version": 0, "theta": [0.0, 0.0], "ticket": "t"}), (409, {"code": "stale"})
    client = Scripted(
        turn, stale, turn, (200, {"sequence": None}), (409, {"code": "applied"}), stale, turn, (200, {"sequence": 1})
    )
    with pytest.raises(cs.local.BudgetSpentError):
        client.take_part("ann", RECORD, LOSS, 1.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="sequence must be a whole number"):
            client.take_part("ann", RECORD, LOSS, 1.0, again=True)
    with pytest.raises(cs.local.BudgetSpentError):
        client.take_part("ann", RECORD, LOSS, 1.0, again=True)
    assert client.take_part("ann", RECORD, LOSS, 1.0, again=True) == (1, pytest.approx(math.sqrt(3)))


@pytest.mark.parametrize("status", [401, 403, 404, 405, 408, 411, 431])
def test_an_answer_that_does_not_concern_the_report_costs_nothing(status):
    """A proxy that was misconfigured for a moment, or a wrong enrolment token: the same bytes are sent again."""
    turn = 200, {"seconds": 60, "version": 0, "theta": [0.0, 0.0], "ticket": "t"}
    client = Scripted(turn, (status, {"error": "Not here."}), (200, {"sequence": 1}))
    with pytest.raises(cs.local.NoAnswerError, match="was sent, and is kept: Not here. Call take_part again to send"):
        client.take_part("ann", RECORD, LOSS, 1.0)
    assert client.take_part("ann", RECORD, LOSS, 1.0) == (1, 1.0)
    assert client.spent("ann") == 1.0


def test_an_answer_that_cannot_be_read_is_none():
    """Brackets beyond the depth of recursion are as good as no JSON."""
    with http_server.listen("127.0.0.1", 0) as listener:
        client = Client(http_server.address(listener), patience=0.01)
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000

        def talk():
            while True:
                connection, _ = listener.accept()
                with connection:
                    if b"/end" in connection.recv(65536):
                        return
                    connection.sendall(answer)

        with ThreadPoolExecutor(1) as threads:
            talking = threads.submit(talk)
            with pytest.raises(cs.local.NoAnswerError, match="recursion"):
                client.take_part("ann", RECORD, LOSS, 1.0)
            assert client._request("GET", "/end") is None
            talking.result()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", 7])
def test_wrong_urls(url):
    with pytest.raises(ValueError, match="url must begin with http:// or https:// and name a host"):
        Client(url)


@pytest.mark.parametrize("size", [1, 7])
def test_a_record_of_the_wrong_length_is_named_and_costs_nothing(server, url, size):
    client = Client(url)
    message = (
        rf"^record must have the length for the service's model of 2 entries, got {size} feature\(s\), for a model of "
        rf"{size}; no report has left the device\.$"
    )
    with pytest.raises(ValueError, match=message):
        client.take_part("ann", ([0.5] * size, 1.0), LOSS, mu=1.0)
    assert client.spent("ann") == 0.0
    assert entries(server) == []


def test_wrong_records_request_no_turn(server, url):
    with pytest.raises(ValueError, match="labels must hold labels 0 and 1 only"):
        Client(url).take_part("ann", ([0.0, 1.0], 3), LOSS, mu=1.0)
    with pytest.raises(ValueError, match="mu must be a number from"):
        Client(url).take_part("ann", RECORD, LOSS, mu=0.0)
    with pytest.raises(TypeError, match="user must be a str"):
        Client(url).take_part(["ann"], RECORD, LOSS, mu=1.0)
    assert server.turn_left() == 0.0
