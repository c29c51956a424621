"""What a ledger promises to the server, however it is stored. Add a new storage to `LEDGERS`."""

import importlib.util
import inspect
import shutil
from contextlib import nullcontext

import numpy as np
import pytest

import clipsilon as cs
import postgres_server
from clipsilon.local import server as server_module
from clipsilon.local.ledger import Closing, Entry, Head, Ledger, LedgerError, open_ledger

STEP = cs.schedules.Power(0.2, 0.5)
SETTINGS = {"start": "[0.0]", "repeats": "refuse"}


class MemoryLedger:
    """The smallest ledger: its content is the dictionary `stored`, which a test passes on to reopen it."""

    def __init__(self, location, settings=None, stored=None):
        self.name, self._stored, self.key, self.is_shared = str(location), {} if stored is None else stored, b"k", False
        if settings is not None and self._stored.setdefault("settings", settings) != settings:
            raise LedgerError(f"{self.name} is the ledger of another run.")
        self._events = self._stored.setdefault("events", [])
        self._place = 0

    @property
    def position(self):
        closed = sum(isinstance(event, Closing) for event in self._events[: self._place])
        return Head(self._place - closed, closed, b"")

    def transaction(self):
        return nullcontext()

    def resume(self):
        return None

    def require(self, known):
        assert self.position >= known

    def news(self):
        while self._place < len(self._events):
            self._place += 1
            yield self._events[self._place - 1]

    def append(self, events):
        assert self._place == len(self._events)
        self._events += events
        self._place += len(events)

    def events(self):
        return iter(self._events[: self._place])

    def _numbered(self):
        return enumerate((event for event in self._events if isinstance(event, Entry)), 1)

    def find(self, user, version):
        return [(k, one) for k, one in self._numbered() if (one.user, one.version) == (user, version)]

    def budgets(self, after=0):
        return [(one.user, one.mu, one.lost) for _, one in self._numbered()][after:]

    def close(self):
        pass


def sqlite(tmp_path):
    return lambda settings=SETTINGS: open_ledger(tmp_path / "ledger.db", settings)


def memory(tmp_path):
    stored = {}
    return lambda settings=SETTINGS: MemoryLedger("memory", settings, stored)


def postgres(tmp_path):
    address = postgres_server.schema(f"ledger{abs(hash(tmp_path))}")
    return lambda settings=SETTINGS: open_ledger(address, settings)


LEDGERS = [sqlite, memory, postgres]


@pytest.fixture(params=LEDGERS, ids=lambda opener: opener.__name__)
def opened(request, tmp_path):
    """Return a function that opens the same ledger, as often as it is called."""
    return available(request.param)(tmp_path)


def available(opener):
    """Return a way to open ledgers, or skip the test where PostgreSQL is missing."""
    if opener is postgres and (postgres_server.binaries() is None or importlib.util.find_spec("psycopg") is None):
        pytest.skip("PostgreSQL or psycopg is not installed.")
    return opener


EVENTS = [
    Entry("ann", 1.0, 0, np.array([0.1, -1 / 3])),
    Entry("bob", 0.5, 0, np.array([1e-300, 2.0]), 0.25),
    Closing(0, 2),
    Entry("eve", 0.5, 0, np.array([1.0, 2.0]), 0.0, 1),
    Closing(1, 3, np.array([0.5, 0.1]), np.array([0.2, 1 / 3])),
    Entry("ann", 2.0, 2, np.array([1.0, 2.0]), 0.0, 2),
]


def same(one, other):
    return type(one) is type(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def write(ledger, *groups):
    list(ledger.news())
    for group in groups:
        with ledger.transaction():
            ledger.append(group)


def test_a_reopened_ledger_holds_what_was_written(opened):
    ledger = opened()
    assert (ledger.resume(), ledger.budgets(), list(ledger.news())) == (None, [], [])
    write(ledger, EVENTS[:1], EVENTS[1:4], EVENTS[4:])
    before = ledger.position
    assert before[:2] == (4, 2)
    ledger.close()
    ledger = opened()
    assert ledger.position[:2] == (0, 0)
    found = list(ledger.news())
    assert all(map(same, found, EVENTS))
    assert len(found) == len(EVENTS)
    assert all(map(same, ledger.events(), EVENTS))
    assert ledger.position == before
    ledger.require(before)
    assert ledger.budgets() == [("ann", 1.0, 0.0), ("bob", 0.5, 0.25), ("eve", 0.5, 0.0), ("ann", 2.0, 0.0)]
    assert ledger.budgets(3) == [("ann", 2.0, 0.0)]
    assert ledger.budgets(4) == []
    ((number, entry),) = ledger.find("ann", 2)
    assert number == 4
    assert same(entry, EVENTS[-1])
    assert ledger.find("ann", 1) == []
    assert len(ledger.key) >= 1
    ledger.close()


def test_a_negative_zero_does_not_damage_a_ledger(opened):
    """SQLite returns it as 0.0; one report with it would make the ledger useless at the next start."""
    ledger = opened()
    write(ledger, [Entry("ann", 1.0, 0, np.array([-0.0, 1.0]), -0.0)])
    ledger.close()
    ledger = opened()
    (found,) = ledger.news()
    assert found.lost == 0.0
    ledger.close()


@pytest.mark.parametrize("opener", [sqlite, postgres])
def test_a_restart_begins_with_the_last_snapshot(tmp_path, opener):
    opened = available(opener)(tmp_path)
    ledger = opened()
    write(ledger, EVENTS)
    ledger.close()
    ledger = opened()
    assert same(ledger.resume(), EVENTS[4])
    assert ledger.position[:2] == (3, 2)
    assert all(map(same, ledger.news(), EVENTS[5:]))
    assert len(list(ledger.events())) == len(EVENTS)  # from the start, whatever was skipped
    ledger.close()


DAMAGE = {
    "UPDATE report SET mu = 1.5 WHERE sequence = 2": "report 2 was changed",
    "UPDATE report SET lost = 0 WHERE sequence = 2": "report 2 was changed",
    "UPDATE report SET sender = 'eva' WHERE sequence = 3": "report 3 was changed",
    "UPDATE report SET version = 1 WHERE sequence = 3": "report 3 was changed",
    "UPDATE report SET round = 1 WHERE sequence = 2": "the end of round 0 was changed, or is missing",
    "UPDATE report SET content = chain WHERE sequence = 1": "report 1 was changed",
    "DELETE FROM report WHERE sequence = 1": "report 1 was changed, or is missing",
    "DELETE FROM report WHERE sequence = 4": "do not lead to its head",
    "DELETE FROM closing WHERE round = 0": "is missing",
    "DELETE FROM closing WHERE round = 1": "is missing",
    "UPDATE closing SET theta = average WHERE round = 1": "the end of round 1 was changed",
    "UPDATE head SET sequence = 3": "do not lead to its head",
    "DELETE FROM head": "its head is missing",
}


def read_damaged(ledger, damage):
    with ledger.transaction():  # so that the damage is rolled back
        ledger._database.run(damage)
        list(ledger.news())


@pytest.mark.parametrize("opener", [sqlite, postgres])
def test_every_change_is_noticed(tmp_path, opener):
    opened = available(opener)(tmp_path)
    ledger = opened()
    write(ledger, EVENTS)
    ledger.close()
    for damage, message in DAMAGE.items():
        ledger = opened()
        with pytest.raises(LedgerError, match=message):
            read_damaged(ledger, damage)
        ledger.close()
    ledger = opened()
    assert len(list(ledger.news())) == len(EVENTS)  # the damage was rolled back each time
    ledger.close()


def test_a_lost_journal_is_noticed(tmp_path):
    """The log is removed after a crash: the file alone is a valid, older ledger."""
    folder, copy = tmp_path / "one", tmp_path / "two"
    folder.mkdir()
    ledger = open_ledger(folder / "l", SETTINGS)
    write(ledger, EVENTS[:3], EVENTS[3:])
    shutil.copytree(folder, copy)  # as after a crash
    ledger.close()
    assert sorted(path.name for path in folder.iterdir()) == ["l", "l-head"]
    again = tmp_path / "three"
    shutil.copytree(copy, again)
    whole = open_ledger(again / "l", SETTINGS)
    assert len(list(whole.news())) == len(EVENTS)
    whole.close()
    (copy / "l-wal").unlink()
    with pytest.raises(LedgerError, match="not a ledger of this version|has lost reports"):
        open_ledger(copy / "l", SETTINGS)


def test_an_older_copy_is_noticed(tmp_path):
    ledger = open_ledger(tmp_path / "l", SETTINGS)
    write(ledger, EVENTS[:3])
    ledger.close()
    old = (tmp_path / "l").read_bytes()
    ledger = open_ledger(tmp_path / "l", SETTINGS)
    write(ledger, EVENTS[3:])
    ledger.close()
    (tmp_path / "l").write_bytes(old)
    with pytest.raises(LedgerError, match="has lost reports: it had 4, and has 2"):
        open_ledger(tmp_path / "l", SETTINGS)


def test_a_tail_that_is_cut_with_its_head_is_noticed(tmp_path):
    """What is left is a valid ledger; only the witness knows better."""
    ledger = open_ledger(tmp_path / "l", SETTINGS)
    write(ledger, EVENTS)
    with ledger.transaction():
        ledger._database.run("DELETE FROM report WHERE sequence = 4")
        ledger._database.run("UPDATE head SET sequence = 3, chain = (SELECT chain FROM closing WHERE round = 1)")
    ledger.close()
    with pytest.raises(LedgerError, match="has lost reports: it had 4, and has 3"):
        open_ledger(tmp_path / "l", SETTINGS)


@pytest.mark.parametrize("opener", [sqlite, postgres])
@pytest.mark.parametrize("events", [[], EVENTS], ids=["empty", "full"])
def test_changed_settings_are_noticed(tmp_path, opener, events):
    opened = available(opener)(tmp_path)
    ledger = opened()
    write(ledger, events)
    with ledger.transaction():
        ledger._database.run("UPDATE setting SET value = 'compose' WHERE name = 'repeats'")
    ledger.close()
    ledger = opened({**SETTINGS, "repeats": "compose"})
    with pytest.raises(LedgerError, match="is damaged"):
        list(ledger.news())
    ledger.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_flipped_bit_is_noticed(tmp_path, seed):
    """Wherever in a report it is: in its numbers, or in its digest."""
    rng = np.random.default_rng(seed)
    ledger = open_ledger(tmp_path / "l", SETTINGS)
    write(ledger, [Entry(f"user number {k}", 1.0, 0, rng.standard_normal(50)) for k in range(40)])
    rows = [row[0] for row in ledger._database.run("SELECT content FROM report")]
    ledger.close()
    content = bytearray((tmp_path / "l").read_bytes())
    place = content.find(rows[int(rng.integers(40))]) + int(rng.integers(432))
    content[place] ^= 1 << int(rng.integers(8))
    (tmp_path / "l").write_bytes(content)
    with pytest.raises(LedgerError, match="damaged|malformed|cannot be read"):
        list(open_ledger(tmp_path / "l", SETTINGS).news())


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
