"""What a device remembers: before a report leaves, over restarts and processes, and whatever kills it."""

import json
import math
import os
import random
import signal
import sys
import time
import unicodedata
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest

import clipsilon as cs
from clipsilon.local import Client, client, service, spending
from clipsilon.local.spending import Spending, compose
from processes import starting

LOSS, STEP, RECORD = cs.losses.MallowsLogistic(), cs.schedules.Power(0.2, 0.5), ([0.3, -0.7], 1)
RECORDER = Path(__file__).parents[1] / "helpers" / "report_recorder.py"


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    with cs.local.Server(folder / "l", start=[0.0, 0.5], step=STEP, repeats="compose") as opened:
        yield opened


@pytest.fixture
def url(server):
    with service.running(server) as address:
        yield address


def test_a_restarted_device_remembers(server, url, tmp_path):
    path = tmp_path / "spent.json"
    Client(url, spending=path).take_part("ann", RECORD, LOSS, mu=2.0)
    device = Client(url, spending=path)
    assert device.spent("ann") == 2.0
    assert device.spent("bob") == 0.0
    with pytest.raises(ValueError, match="again must be True for a second release of user 'ann'"):
        device.take_part("ann", RECORD, LOSS, mu=2.0)
    device.take_part("ann", RECORD, LOSS, mu=1.5, again=True)
    assert Client(url, spending=path).spent("ann") == 2.5
    assert path.stat().st_mode & 0o777 == 0o600
    assert server.reports == 2


def test_a_limit_over_all_reports(server, url, tmp_path):
    path = tmp_path / "spent.json"
    Client(url, spending=path).take_part("ann", RECORD, LOSS, mu=2.0)
    limited = Client(url, spending=path, limit=2.4)
    with pytest.raises(ValueError, match="mu must keep user 'ann' within the limit of 2.4, got 2.5 in total"):
        limited.take_part("ann", RECORD, LOSS, mu=1.5, again=True)
    assert limited.take_part("ann", RECORD, LOSS, mu=1.0, again=True) == (2, 1.0)
    with pytest.raises(ValueError, match="within the limit"):
        limited.take_part("bob", RECORD, LOSS, mu=2.5)
    assert server.reports == 2


def test_what_is_spent_is_on_disk_before_anything_leaves(url, tmp_path, monkeypatch):
    path, seen = tmp_path / "spent.json", []
    request = Client._request

    def spied(self, method, where, body=None):
        stored = json.loads(path.read_text())["users"].get("ann", {}) if path.exists() else {}
        seen.append((where, stored.get("spent"), stored.get("pending") == (body or b"").decode()))
        return request(self, method, where, body)

    monkeypatch.setattr(Client, "_request", spied)
    Client(url, spending=path).take_part("ann", RECORD, LOSS, mu=2.0)
    assert seen == [("/turn", None, False), ("/report", 2.0, True)]


def test_the_same_bytes_after_a_restart_or_nothing(server, url, tmp_path, monkeypatch):
    path = tmp_path / "spent.json"
    with monkeypatch.context() as patch:
        patch.setattr(Client, "_deliver", lambda *_: None)  # as if killed before sending
        Client(url, spending=path).take_part("ann", RECORD, LOSS, mu=2.0)
    assert server.reports == 0
    pending = json.loads(path.read_text())["users"]["ann"]["pending"]
    with pytest.raises(ValueError, match=f"url must be {url} until the report of user 'ann' is answered"):
        Client("http://127.0.0.1:1", spending=path).take_part("ann", RECORD, LOSS, mu=2.0)
    monkeypatch.setattr(client, "report", lambda *_: pytest.fail("a second report was made"))
    assert Client(url, spending=path).take_part("ann", RECORD, LOSS, mu=7.0) == (1, 2.0)
    assert next(server._ledger.events()).report.tolist() == json.loads(pending)["report"]
    assert json.loads(path.read_text())["users"]["ann"]["pending"] == ""


def test_many_threads_and_clients_make_one_report(server, url, tmp_path):
    """All want to report for ann; what each of them made but the first has not left."""
    path = tmp_path / "spent.json"

    def take_part(device):
        try:
            return device.take_part("ann", RECORD, LOSS, 2.0).sequence
        except ValueError as problem:
            return None if "again must be True" in str(problem) else 0

    shared = Client(url, spending=path)
    server.turn_seconds = 0.2  # of those who learn meanwhile that another was faster, and do not use it
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(take_part, [shared if k % 2 else Client(url, spending=path) for k in range(4)]))
    assert {number for number in found if number is not None} == {1}
    assert server.reports == 1
    assert shared.spent("ann") == 2.0


class Confused(Client):
    """A client that takes another token."""

    def _turn(self, user):
        return super()._turn(user)[0], "another token"


def test_a_refused_report_is_remembered(tmp_path, url, server):
    path = tmp_path / "spent.json"
    with pytest.raises(cs.local.BudgetSpentError):
        Confused(url, spending=path).take_part("ann", RECORD, LOSS, mu=2.0)
    server._places._places.clear()
    assert Client(url, spending=path).take_part("ann", RECORD, LOSS, 1.5, again=True) == (1, 2.5)
    assert server.statement(1e-5).of("ann")["mu"] == 2.5
    entry = next(server._ledger.events())
    assert (entry.mu, entry.lost) == (1.5, 2.0)


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "another"}'])
def test_a_wrong_file_is_refused(tmp_path, content):
    path = tmp_path / "spent.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="spending must be a file of this device"):
        Client("http://127.0.0.1:1", spending=path)
    assert path.read_text() == content


def test_accounts_compose(tmp_path):
    for device in (Spending(), Spending(tmp_path / "s")):
        for used in (False, True):
            with device.account("ann") as account:
                account.charge(3.0, "body", "url")
            with device.account("ann") as account:
                account.settle("another body", used=True)
                assert account.pending == "body"
                account.settle("body", used)
        with device.account("ann") as account:
            assert (account.spent, account.lost) == (pytest.approx(math.sqrt(18)), {})
        with pytest.raises(ZeroDivisionError), device.account("ann") as account:
            account.charge(1.0 / 0.0, "never", "url")
        with device.account("ann") as account:
            assert account.pending == ""


def spend(device, mu, used=True, meanwhile=lambda: None):
    """Let a report of ann leave, and be answered."""
    with device.account("ann") as account:
        meanwhile()
        account.charge(mu, "body", "url")
        account.settle("body", used)


def spent(device):
    with device.account("ann") as account:
        return account.spent


def test_what_a_service_lost_is_stated_to_this_service():
    """In between, another service accepts a report; the first has still seen one that is in no ledger."""
    device, stated = Spending(), []
    for url, used in (("a", False), ("b", True), ("a", True), ("a", True)):
        with device.account("ann") as account:
            account.charge(1.0, "body", url)
            stated.append(account.mu)
            account.settle("body", used)
    assert stated == [1.0, 1.0, pytest.approx(math.sqrt(2)), 1.0]


@pytest.mark.parametrize("same", ["http://HOST:80/x/", "http://host/x", "http://host/x?y"])
def test_one_service_has_one_name(same):
    assert Client(same)._url == "http://host/x"


def test_no_report_is_free():
    """To the nearest float, √(100² + 10⁻¹²) is 100."""
    device = Spending()
    spend(device, 100.0)
    spend(device, 1e-6)
    assert spent(device) == math.nextafter(100.0, math.inf)
    rng = random.Random(3)
    for a, b in [(rng.uniform(0.0, 3.0), rng.uniform(0.0, 3.0)) for _ in range(200)]:
        assert Fraction(compose(a, b)) ** 2 >= Fraction(a) ** 2 + Fraction(b) ** 2
    assert (compose(2.0, 1.5), compose(0.0, 0.1), compose()) == (2.5, 0.1, 0.0)


def test_statements_are_not_below_what_was_spent(server):
    """To the nearest float, √(100² + 10⁻¹²) is 100; so is the sum of a lost budget and a report."""
    server.apply("ann", 100.0, 0, [0.1, 0.2])
    server.apply("ann", 1e-6, 1, [0.1, 0.2])
    server.apply("bob", 1e-6, 2, [0.1, 0.2], lost=100.0)
    rng = random.Random(4)
    budgets = [rng.uniform(0.5, 2.0) for _ in range(20)]
    for mu in budgets:
        server.apply("eve", mu, server.version, [0.1, 0.2])
    stated = server.statement(1e-5)
    assert stated.of("ann")["mu"] == stated.of("bob")["mu"] == math.nextafter(100.0, math.inf)
    assert Fraction(stated.of("eve")["mu"]) ** 2 >= sum(Fraction(mu) ** 2 for mu in budgets)


def test_a_name_in_two_forms_is_one_account():
    device = Spending()
    with device.account(unicodedata.normalize("NFD", "José")) as account:
        account.charge(1.0, "body", "url")
    with device.account(unicodedata.normalize("NFC", "José")) as account:
        assert account.spent == 1.0


def test_links_and_folders_lead_to_the_same_file(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    relative = Spending(Path("s"))
    spend(Spending(tmp_path / "folder" / "link"), 3.0)
    monkeypatch.chdir(tmp_path / "folder")
    spend(relative, 4.0)
    assert spent(Spending(tmp_path / "s")) == 5.0
    assert (tmp_path / "folder" / "link").is_symlink()


def test_a_file_that_is_removed_or_set_back_is_noticed(tmp_path):
    device = Spending(tmp_path / "s")
    spend(device, 1.0)
    old = (tmp_path / "s").read_bytes()
    spend(device, 1.0)
    (tmp_path / "s").write_bytes(old)
    with pytest.raises(ValueError, match="must not be set back while it is used.*user 'ann' has spent less"):
        spend(device, 1.0)
    (tmp_path / "s").unlink()
    with pytest.raises(ValueError, match="spending must not be removed while it is used"):
        spend(device, 1.0)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("old", ['"spent": 1.0', '{"url": 1.0'])
@pytest.mark.parametrize(("new", "signed"), [("0.5", False), ("NaN", True), ("-1.0", True), ("Infinity", True)])
def test_a_changed_number_is_noticed(tmp_path, old, new, signed):
    """By the digest; and numbers that cannot be right also where it was computed anew."""
    spend(Spending(tmp_path / "s"), 1.0, used=False)
    written = (tmp_path / "s").read_text()
    changed = written.replace(old, old.replace("1.0", new))
    assert changed != written
    if signed:
        content = json.loads(changed)
        changed = json.dumps({**content, "digest": spending._digest(content["users"])})
    (tmp_path / "s").write_text(changed)
    with pytest.raises(ValueError, match="which is not one or damaged"):
        Spending(tmp_path / "s")


@pytest.mark.skipif(spending.fcntl is None, reason="no flock")
def test_a_removed_lock_does_not_let_two_write(tmp_path):
    """Whoever held it notices, and its report does not leave; so does whoever has read another file."""
    path, lock = tmp_path / "s", tmp_path / "s.lock"
    one, two = Spending(path), Spending(path)
    for interfere in (lambda: (lock.unlink(), spend(two, 1.0)), lambda: path.write_bytes(path.read_bytes() + b" ")):
        with pytest.raises(ValueError, match="must not be changed or unlocked by others"):
            spend(one, 1.0, meanwhile=interfere)
    assert spent(two) == 1.0


@pytest.mark.skipif(spending.fcntl is None, reason="no flock")
def test_a_lock_that_was_removed_while_waiting_is_not_used(tmp_path, monkeypatch):
    device, flock, held = Spending(tmp_path / "s"), spending.fcntl.flock, []

    def removed(handle, how):
        flock(handle, how)
        held.append(os.fstat(handle).st_ino)
        if len(held) == 1:
            (tmp_path / "s.lock").rename(tmp_path / "gone")

    monkeypatch.setattr(spending.fcntl, "flock", removed)
    spend(device, 1.0)
    assert held == [(tmp_path / "gone").stat().st_ino, (tmp_path / "s.lock").stat().st_ino]


class Traced(Client):
    """A client that writes a byte to a pipe before and after each request."""

    pipe = -1

    def _request(self, method, path, body=None):
        os.write(self.pipe, b".")
        answer = super()._request(method, path, body)
        os.write(self.pipe, b".")
        return answer


def kill_devices(tmp_path, kills, seed):
    """Kill a device at random moments; return the file, the reports that arrived, and kills between file and sending."""
    spent, log, rng, between = tmp_path / "spent.json", tmp_path / "reports", random.Random(seed), 0
    with starting() as start:
        recorder = start([sys.executable, RECORDER, log])
        url = recorder.stdout.readline().strip()
        cs.local.report([0.0, 0.5], RECORD, LOSS, 1.0)  # compiles before the fork
        for _ in range(kills):
            ours, theirs = os.pipe()
            child = os.fork()
            if child == 0:
                Traced.pipe = theirs
                live(url, spent)
            for _ in range(rng.randrange(1, 7)):
                os.read(ours, 1)
            time.sleep(rng.uniform(0.0, 0.02))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(ours)
            os.close(theirs)
            bodies = {one["pending"] for one in users(spent).values() if one["pending"]}
            between += len(bodies - set(log.read_text().splitlines()))
        device = Client(url, spending=spent)
        for name, account in users(spent).items():
            if account["pending"]:
                device.take_part(name, RECORD, LOSS, 1.0)
        return users(spent), [json.loads(line) for line in log.read_text().splitlines()], between


def users(path):
    return json.loads(path.read_text())["users"] if path.exists() else {}


def live(url, spent):
    """Take part for one user after the other until killed; those who have taken part are passed over."""
    try:
        device = Traced(url, spending=spent)
        known = users(spent)
        for k in range(10**9):
            if f"u{k}" not in known or known[f"u{k}"]["pending"]:
                device.take_part(f"u{k}", RECORD, LOSS, 1.0)
    finally:
        os._exit(1)


def check_kills(accounts, reports):
    """Each user who spent has sent one report, and nobody else has sent any."""
    sent = Counter()
    for user in accounts:
        sent[user] = len({json.dumps(one) for one in reports if one["user"] == user})
    assert {one["user"] for one in reports} == set(accounts)
    assert set(sent.values()) == {1}
    assert {one["spent"] for one in accounts.values()} == {1.0}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_killed_device_never_sends_two_reports(tmp_path):
    accounts, reports, _ = kill_devices(tmp_path, 25, seed=0)
    check_kills(accounts, reports)


@pytest.mark.verify
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_device_that_is_killed_a_thousand_times(tmp_path):
    accounts, reports, between = kill_devices(tmp_path, 1000, seed=1)
    print(f"{len(accounts)} users, {len(reports)} deliveries, {between} kills between writing and sending")
    check_kills(accounts, reports)
    assert between > 0
