"""What a ledger promises to the server, however it is stored. Add a new storage to `LEDGERS`."""

import inspect

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.local import server as server_module
from clipsilon.local.ledger import Entry, Ledger, LedgerError, open_ledger

STEP = cs.schedules.Power(0.2, 0.5)
SETTINGS = {"start": "[0.0]", "repeats": "refuse"}


class MemoryLedger:
    """The smallest ledger: its content is the dictionary `stored`, which a test passes on to reopen it."""

    def __init__(self, location, settings=None, stored=None):
        self.name, self._stored = str(location), {} if stored is None else stored
        if settings is not None and self._stored.setdefault("settings", settings) != settings:
            raise LedgerError(f"{self.name} is the ledger of another run.")
        self._entries = self._stored.setdefault("entries", [])

    def append(self, entry):
        assert entry.version == len(self._entries)
        self._entries.append(entry)

    def set_turn(self, version, user, token):
        self._stored["turn"] = version, user, token

    def last_turn(self):
        return self._stored.get("turn")

    def has_user(self, user):
        return any(entry.user == user for entry in self._entries)

    def budgets(self):
        return [(entry.user, entry.mu) for entry in self._entries]

    def entry(self, version):
        return self._entries[version] if 0 <= version < len(self._entries) else None

    def entries(self):
        return iter(self._entries)

    def close(self):
        pass


def sqlite(tmp_path):
    return lambda settings=SETTINGS: open_ledger(tmp_path / "ledger.db", settings)


def memory(tmp_path):
    stored = {}
    return lambda settings=SETTINGS: MemoryLedger("memory", settings, stored)


LEDGERS = [sqlite, memory]


@pytest.fixture(params=LEDGERS, ids=lambda opener: opener.__name__)
def opened(request, tmp_path):
    """Return a function that opens the same ledger, as often as it is called."""
    return request.param(tmp_path)


ENTRIES = [Entry("ann", 1.0, 0, np.array([0.1, -1 / 3])), Entry("bob", 0.5, 1, np.array([1e-300, 2.0]))]


def same(one, other):
    return one[:3] == other[:3] and one.report.tobytes() == other.report.tobytes()


def test_a_reopened_ledger_holds_what_was_written(opened):
    ledger = opened()
    assert (ledger.last_turn(), ledger.budgets(), list(ledger.entries())) == (None, [], [])
    for entry in ENTRIES:
        ledger.append(entry)
    ledger.set_turn(1, "bob", "old")
    ledger.set_turn(2, "eve", "secret")
    ledger.close()
    ledger = opened()
    assert ledger.last_turn() == (2, "eve", "secret")
    assert [ledger.has_user(user) for user in ("ann", "bob", "eve")] == [True, True, False]
    assert ledger.budgets() == [("ann", 1.0), ("bob", 0.5)]
    assert all(map(same, ledger.entries(), ENTRIES))
    assert same(ledger.entry(1), ENTRIES[1])
    assert ledger.entry(2) is None
    ledger.close()


def test_settings_of_another_run_are_refused(opened):
    opened().close()
    with pytest.raises(LedgerError, match="is the ledger of another run"):
        opened({**SETTINGS, "repeats": "compose"})
    opened(None).close()  # without settings, of any run


def test_a_ledger_has_a_name_for_messages(opened):
    ledger = opened()
    assert ledger.name
    ledger.close()


def test_the_server_needs_nothing_but_the_protocol(tmp_path, monkeypatch):
    """With the smallest ledger in place of SQLite, the server gives the same results to the last bit."""
    promised = {name for name in vars(Ledger) if not name.startswith("_")}
    assert {name for name, _ in inspect.getmembers(MemoryLedger("l")) if not name.startswith("_")} == promised
    states = []
    for opener in (open_ledger, MemoryLedger):
        monkeypatch.setattr(server_module, "open_ledger", opener)
        with cs.local.Server(tmp_path / "ledger.db", start=[0.0, 0.5], step=STEP) as server:
            turn = server.turn("ann", "secret")
            server.apply("ann", 2.0, turn.version, [0.3, 0.1], token="secret")
            with pytest.raises(cs.local.RefusalError, match="already been applied"):
                server.apply("ann", 2.0, 0, [0.3, 0.1])
            with pytest.raises(cs.local.RefusalError, match="already reported"):
                server.turn("ann", "new")
            replayed = server.replay()
            assert replayed.theta.tobytes() == server.theta.tobytes()
            states.append(
                (server.version, server.theta.tobytes(), server.average.tobytes(), str(server.statement(1e-5)))
            )
    assert states[0] == states[1]
