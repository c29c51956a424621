"""Several servers on one PostgreSQL ledger; left out only where there is no PostgreSQL."""

import importlib.util

import numpy as np
import pytest

import clipsilon as cs
import postgres_server
from clipsilon._core import postgres
from clipsilon._core.database import StorageError
from clipsilon._core.databases import open_database
from clipsilon.local import Client, service
from clipsilon.local import server as server_module
from clipsilon.local.ledger import Entry
from clipsilon.local.server import Submission

if postgres_server.binaries() is None or importlib.util.find_spec("psycopg") is None:
    pytest.skip("PostgreSQL or psycopg is not installed.", allow_module_level=True)

LOSS = cs.losses.MallowsLogistic()
ABOUT = {"start": [0.0, 0.5], "step": cs.schedules.Power(0.2, 0.5), "batch": 5, "loss": LOSS}
REPORTS = np.random.default_rng(0).standard_normal((60, 2))


@pytest.fixture
def address(request):
    return postgres_server.schema(f"s{abs(hash(request.node.name))}")


def bits(server):
    return server.version, server.reports, server.theta.tobytes(), server.average.tobytes()


def test_two_servers_are_one_in_sqlite_to_the_bit(address, tmp_path):
    with cs.local.Server(tmp_path / "l", **ABOUT) as alone:
        for k in range(0, 60, 3):
            alone.apply_many([Submission(f"u{i}", 1.0, alone.version, REPORTS[i]) for i in range(k, k + 3)])
        expected = bits(alone)
    with cs.local.Server(address, **ABOUT) as one, cs.local.Server(address, **ABOUT) as other:
        for k in range(0, 60, 3):
            server = (one, other)[k % 2]
            server.refresh()
            answers = server.apply_many([Submission(f"u{i}", 1.0, server.version, REPORTS[i]) for i in range(k, k + 3)])
            assert [tuple(answer) for answer in answers] == [(i + 1, i // 5) for i in range(k, k + 3)]
        one.refresh()
        other.refresh()
        assert bits(one) == bits(other) == expected
        assert one.replay().theta.tobytes() == one.theta.tobytes()
        refused = other.apply_many([Submission("u0", 1.0, 0, REPORTS[0]), Submission("u0", 2.0, 0, REPORTS[0])])
        assert [answer.code for answer in refused] == ["applied", "repeated"]


def test_a_ticket_of_one_is_honoured_by_the_other(address):
    with cs.local.Server(address, **ABOUT) as one, cs.local.Server(address, **ABOUT) as other:
        turn = one.turn("ann", "t")
        assert other.apply("ann", 1.0, turn.version, [0.1, 0.2], "t", turn.ticket) == 1
        one.refresh()
        with pytest.raises(cs.local.RefusalError, match="has already reported"):
            one.turn("ann", "new")


def test_one_of_them_closes_a_round_that_is_over(address, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(server_module.time, "monotonic", lambda: now[0])
    with (
        cs.local.Server(address, **ABOUT, round_seconds=5.0) as one,
        cs.local.Server(address, **ABOUT, round_seconds=5.0) as other,
    ):
        one.apply("ann", 1.0, 0, [0.1, 0.2])
        other.refresh()
        now[0] += 6.0
        one.refresh()
        other.refresh()
        assert bits(one) == bits(other)
        assert (one.version, one.reports) == (1, 1)


def test_settings_and_streams_of_others_are_refused(address):
    with cs.local.Server(address, **ABOUT):
        with pytest.raises(cs.local.LedgerError, match="is the ledger of another run: its batch is 5, got 6"):
            cs.local.Server(address, **{**ABOUT, "batch": 6})
        with pytest.raises(StorageError, match="is in use"):
            open_database(address)  # as a stream does


def test_devices_at_two_front_ends(address):
    """Reports through either lead to one sequence, and both publish the same θ."""
    with (
        cs.local.Server(address, **ABOUT) as one,
        cs.local.Server(address, **ABOUT) as other,
        service.running(one) as first,
        service.running(other) as second,
    ):
        clients = [Client(first), Client(second)]
        found = [clients[k % 2].take_part(f"u{k}", ([0.3, -0.7], 1), LOSS, mu=2.0).sequence for k in range(20)]
        assert found == list(range(1, 21))
        one.refresh()
        other.refresh()
        assert bits(one) == bits(other)
        assert clients[0].model().version == clients[1].model().version == 4
        entries = [event for event in one._ledger.events() if isinstance(event, Entry)]
        assert [entry.user for entry in entries] == [f"u{k}" for k in range(20)]


def test_a_front_end_that_stops_within_a_transaction_does_not_stop_the_others(address, monkeypatch):
    monkeypatch.setattr(postgres, "_LONGEST_PAUSE", 100)
    with cs.local.Server(address, **ABOUT) as one, cs.local.Server(address, **ABOUT) as other:
        one._ledger._database.run(one._ledger._database._begin)  # and is heard of no more
        assert other.apply("ann", 1.0, 0, [0.1, 0.2]) == 1
        with pytest.raises(cs.local.LedgerError):
            one.apply("bob", 1.0, 0, [0.1, 0.2])
        one.reopen()
        assert one.apply("bob", 1.0, 0, [0.1, 0.2]) == 2


def test_a_database_that_is_killed_is_found_again():
    """The service answers 503 meanwhile, opens the ledger again by itself, and the device sends the same report."""
    with postgres_server.running() as database, cs.local.Server(database.address, **ABOUT) as server:
        with service.running(server) as url:
            client = Client(url)
            client.take_part("ann", ([0.3, -0.7], 1), LOSS, mu=2.0)
            database.kill()
            client.patience = 0.2
            with pytest.raises(cs.local.NoAnswerError, match="cannot be read or written"):
                client.take_part("bob", ([0.3, -0.7], 1), LOSS, mu=2.0)
            database.start()
            client.patience = 60.0
            assert client.take_part("bob", ([0.3, -0.7], 1), LOSS, mu=2.0).sequence == 2
        assert server.reports == 2
        assert server.replay().theta.tobytes() == server.theta.tobytes()


def test_reports_are_taken_when_the_ledger_is_up_to_date(address):
    """A group is closed when the turn to write has come, after what others have written was read."""
    with cs.local.Server(address, **ABOUT) as one, cs.local.Server(address, **ABOUT) as other:
        other.apply("ann", 1.0, 0, REPORTS[0])
        report = one.check(Submission("bob", 1.0, 0, REPORTS[1]))
        known = []
        answers = one.apply_checked(lambda: known.append(one.reports) or [report])
        assert (known, [answer.sequence for answer in answers]) == ([1], [2])
