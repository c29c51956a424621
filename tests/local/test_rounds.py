"""Rounds of several reports: their mean, when they close, tickets and staleness, and that a replay gives the same θ."""

import math

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.local import server as server_module
from clipsilon.local.ledger import Closing
from clipsilon.local.plausible import plausible
from clipsilon.local.rounds import Averaging, average_reports, trimming_cost
from clipsilon.local.server import Submission
from clipsilon.local.tickets import Place, Places

STEP, LOSS, START = cs.schedules.Power(0.2, 0.5), cs.losses.MallowsLogistic(), [0.0, 0.5]
RNG = np.random.default_rng(0)
REPORTS, BUDGETS = RNG.standard_normal((40, 2)), RNG.uniform(0.5, 2.0, 40)


@pytest.fixture
def opened(tmp_path):
    """Return a function that reopens the same ledger; none is left open."""
    servers = []

    def open_server(**changes):
        for server in servers:
            server.close()
        servers.append(
            cs.local.Server(tmp_path / "l", **{"start": START, "step": STEP, "batch": 3, "loss": LOSS, **changes})
        )
        return servers[-1]

    yield open_server
    for server in servers:
        server.close()


def send(server, first, last, version=None):
    """Send some of the reports; return what is answered."""
    at = server.version if version is None else version
    return server.apply_many([Submission(f"u{k}", BUDGETS[k], at, REPORTS[k]) for k in range(first, last)])


def expected(groups, variance=None, d=2):
    """Return θ and the average by the equations."""
    sensitivity = LOSS.sensitivity()
    variance = (sensitivity / 2) ** 2 if variance is None else variance
    theta, thetas = np.array(START), []
    for r, group in enumerate(groups, 1):
        weights = 1.0 / (variance + d * (sensitivity / BUDGETS[group]) ** 2)
        theta = theta - 0.2 / np.sqrt(r) * (weights @ REPORTS[group]) / weights.sum()
        thetas.append(theta)
    return theta, np.mean(thetas, axis=0)


def bits(state):
    return state.version, state.theta.tobytes(), state.average.tobytes()


@pytest.mark.parametrize("variance", [None, 0.0, 7.0])
def test_a_round_steps_by_the_weighted_mean(opened, variance):
    server = opened(variance=variance)
    answers = [one for k in range(0, 8, 2) for one in send(server, k, k + 2)]
    assert [tuple(one) for one in answers] == [(k + 1, k // 3) for k in range(8)]
    assert (server.version, server.reports) == (2, 8)
    theta, average = expected([[0, 1, 2], [3, 4, 5]], variance)
    np.testing.assert_allclose(server.theta, theta, rtol=1e-13)
    np.testing.assert_allclose(server.average, average, rtol=1e-13)
    assert bits(server.replay()) == bits(server.state)
    again = opened(variance=variance)
    assert bits(again.state) == bits(server.state)
    send(again, 8, 9)  # the two reports of the open round were kept
    np.testing.assert_allclose(again.theta, expected([[0, 1, 2], [3, 4, 5], [6, 7, 8]], variance)[0], rtol=1e-13)


def test_equal_weights_need_no_loss(opened):
    with pytest.raises(ValueError, match="loss must be given for rounds of several reports"):
        opened(loss=None)
    server = opened(loss=None, weights="equal")
    send(server, 0, 3)
    np.testing.assert_allclose(server.theta, np.array(START) - 0.2 * REPORTS[:3].mean(axis=0), rtol=1e-13)
    with pytest.raises(cs.local.LedgerError, match="is the ledger of another run: its averaging is"):
        opened()
    with pytest.raises(cs.local.LedgerError, match="is the ledger of another run: its batch is 3, got 4"):
        opened(loss=None, weights="equal", batch=4)


def test_the_best_weights_are_those_of_least_variance():
    """Beside equal weights, and with the whole weight on the largest budget."""
    budgets, d, sensitivity, variance = np.array([0.1, 1.0, 2.0]), 5, 2.0, 1.0
    spread = variance + d * (sensitivity / budgets) ** 2  # E‖report − mean‖²

    def loss_of(weights):
        return np.sum((weights / weights.sum()) ** 2 * spread)

    unit = np.eye(3)
    found = np.array(
        [average_reports(unit[:, [k]], budgets, Averaging(variance, sensitivity * math.sqrt(5)))[0] for k in range(3)]
    )
    assert found.sum() == pytest.approx(1.0)
    assert loss_of(found) == pytest.approx(1.0 / np.sum(1.0 / spread))
    assert loss_of(found) < min(loss_of(np.ones(3)), loss_of(unit[2]))


def test_a_trimmed_round_bounds_bad_reports():
    honest = RNG.standard_normal((90, 3))
    bad = np.full((10, 3), 1e100)
    both, how = np.concatenate((bad, honest)), Averaging(trim=0.1)
    found = average_reports(both, np.ones(100), how)
    assert np.all((honest.min(axis=0) <= found) & (found <= honest.max(axis=0)))
    order = np.sort(both, axis=0)[10:90]
    np.testing.assert_allclose(found, order.mean(axis=0), rtol=1e-12)
    untrimmed = average_reports(both, np.ones(100), Averaging(trim=0.009))  # less than one report
    np.testing.assert_allclose(untrimmed, both.mean(axis=0))


@pytest.mark.parametrize(("trim", "share"), [(0.0, 4 / 103), (0.1, 4 / 83)])
def test_a_claimed_budget_does_not_take_over_a_round(opened, trim, share):
    """One of 100 claims μ = 10⁶, the others have 1, and it is not trimmed. Uncapped, it has 90 % of the weight."""
    reports, budgets = np.zeros((100, 1000)), np.r_[1e6, np.ones(99)]
    reports[0] = 1.0
    reports[1::2], reports[2::2] = 2.0, -2.0
    honest = Averaging(1.0, 2.0, trim)
    before, after = (average_reports(reports, budgets, how) for how in (honest, honest._replace(weight_cap=2.0)))
    assert before.min() > 0.9
    zeroed = np.vstack((np.zeros(1000), reports[1:]))
    moved = after - average_reports(zeroed, budgets, honest._replace(weight_cap=2.0))
    assert 0.9 * share < moved.max() <= share
    below = np.linspace(0.5, 2.0, 100)  # nothing changes up to the cap
    assert bits_of(reports, below, honest) == bits_of(reports, below, honest._replace(weight_cap=2.0))
    assert opened()._process.averaging.weight_cap == 2.0


def bits_of(reports, budgets, how):
    return average_reports(reports, budgets, how).tobytes()


def test_the_price_of_the_cap():
    """Half with μ = 1, half with 4, noise alone: the variance is 1.36 times that of the best weights."""
    budgets, ratios = np.r_[1.0, 4.0], []
    for cap in (math.inf, 2.0):
        shares = average_reports(np.eye(2), budgets, Averaging(0.0, 1.0, weight_cap=cap))
        ratios.append((shares / budgets) @ (shares / budgets))
    assert ratios[1] / ratios[0] == pytest.approx(1.36)


def test_the_price_of_trimming():
    """Simulated: 4,000 rounds of 200, so the ratio of variances has a standard error of 3 %; 5.5 of them are allowed."""
    rounds = np.random.default_rng(1).standard_normal((4000, 200))
    trimmed = np.array([average_reports(one[:, None], np.ones(200), Averaging(trim=0.2))[0] for one in rounds])
    assert trimmed.var() * 200 == pytest.approx(trimming_cost(0.2), rel=0.17)
    assert trimming_cost(0.0) == 1.0
    assert trimming_cost(0.1) == pytest.approx(1.0604, abs=1e-3)


def test_a_round_closes_after_its_time(opened, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(server_module.time, "monotonic", lambda: now[0])
    server = opened(round_seconds=5.0)
    now[0] += 1000.0
    server.refresh()
    assert server.version == 0  # it has no report yet
    send(server, 0, 1)
    now[0] += 3.0
    send(server, 1, 2)
    now[0] += 1.9
    server.refresh()
    assert server.version == 0
    now[0] += 0.1
    server.refresh()
    assert (server.version, server.reports) == (1, 2)
    np.testing.assert_allclose(server.theta, expected([[0, 1]])[0], rtol=1e-13)
    assert bits(server.replay()) == bits(opened(round_seconds=5.0).state) == bits(server.state)


def test_late_reports_go_to_a_later_round_within_bounds(opened):
    server = opened(staleness=1)
    send(server, 0, 3)
    assert send(server, 3, 4, version=0)[0] == (4, 1)
    send(server, 4, 6)
    refused = send(server, 6, 7, version=0)[0]
    assert refused.code == "stale"
    assert "version must be at most 1 before the current one, 2, got 0" in str(refused)
    assert send(server, 6, 7, version=3)[0].code == "stale"
    assert bits(server.replay()) == bits(server.state)


def test_tickets_are_handed_out_while_reports_would_be_in_time(opened):
    server = opened(staleness=1)
    turns = [server.turn(f"u{k}", "t") for k in range(7)]
    assert [turn is not None for turn in turns] == [True] * 6 + [False]  # two rounds of three
    sent = [Submission(f"u{k}", 1.0, 0, REPORTS[k], "t", turns[k].ticket) for k in range(6)]
    assert [one.version for one in server.apply_many(sent[:5])] == [0, 0, 0, 1, 1]
    assert server.turn("u7", "t").version == 1
    assert server.apply_many(sent[5:])[0] == (6, 1)


def test_tickets_that_are_not_used_hold_no_places_for_long(opened, monkeypatch):
    """10,000 names ask and never report; others still get tickets, and tickets of before are honoured."""
    now = [1000.0]
    monkeypatch.setattr(server_module.time, "time", lambda: now[0])
    server = opened(batch=10, staleness=1, turn_seconds=100)

    def take_part(k):
        turn = server.turn(f"honest{k}", "t")
        now[0] += 0.2
        if turn is not None:
            server.apply(f"honest{k}", 1.0, turn.version, [0.1, 0.1], "t", turn.ticket)
        return turn is not None

    assert all(take_part(k) for k in range(50))
    held, served = [], 0
    for k in range(10_000):
        held.append(server.turn(f"idle{k}", "t"))
        if k % 50 == 0:
            served += take_part(1000 + k)
    assert served >= 100  # of 200
    given = [k for k, turn in enumerate(held) if turn is not None]
    k = given[-1]
    assert server.apply(f"idle{k}", 1.0, held[k].version, [0.1, 0.1], "t", held[k].ticket)


def test_asking_again_for_a_late_ticket_does_not_count_twice():
    """One name could otherwise make it look as if most tickets were not used, so that far too many are handed out."""
    places = Places(overbooks=True)
    for k in range(100):
        places.add(f"u{k}", Place("t", "", 0, 0.0, 10.0))
        places.use(f"u{k}", 0.05)
    places.add("mallory", Place("t", "", 0, 0.0, 10.0))
    for k in range(200):
        now = 1.0 + 0.01 * k
        assert places.expected(now) == 0.0
        places.add("mallory", Place("t", "", 0, 0.0, 10.0))
        assert places.of("mallory") is not None
    places.add("ann", Place("t", "", 0, 3.0, 13.0))
    assert places.expected(3.0) > 0.9
    places.use("mallory", 3.0)
    assert places.of("mallory") is None


def test_a_restart_begins_with_a_snapshot(opened, monkeypatch):
    monkeypatch.setattr(server_module, "_SNAPSHOT_EVERY", 10)
    server = opened()
    for k in range(0, 40, 4):
        send(server, k, k + 4)
    closings = [one for one in server._ledger.events() if isinstance(one, Closing)]
    assert [one.sequence for one in closings if one.theta.size] == [12, 24, 36]
    read = []
    monkeypatch.setattr(server_module, "_followed", lambda *a: read.append(a[2]) or followed(*a))
    again = opened()
    assert len(read) == 5  # four reports and a closing after the last snapshot
    assert bits(again.state) == bits(server.state) == bits(again.replay())
    assert send(again, 0, 1)[0].code == "repeated"  # all names are known


followed = server_module._followed


@pytest.mark.parametrize("change", ["mu = 0.25", "sender = 'anm'"])
def test_a_change_before_the_last_snapshot_is_noticed(opened, monkeypatch, change):
    """A smaller budget would be stated, or a user could report again."""
    monkeypatch.setattr(server_module, "_SNAPSHOT_EVERY", 4)
    server = opened()
    send(server, 0, 9)
    with server._ledger.transaction():
        server._ledger._database.run(f"UPDATE report SET {change} WHERE sequence = 1")
    with pytest.raises(cs.local.LedgerError, match="report 1 was changed"):
        opened()


def test_a_group_is_considered_one_by_one(opened):
    """The same report twice, another of the same user, an implausible one and good ones in one write."""
    server = opened()
    good = Submission("ann", 1.0, 0, [0.1, 0.2])
    answers = server.apply_many(
        [good, good, good._replace(mu=2.0), good._replace(user="eve", report=[1e6, 0.0]), good._replace(user="bob")]
    )
    assert [one if isinstance(one, tuple) else getattr(one, "code", "invalid") for one in answers] == [
        (1, 0),
        "applied",
        "repeated",
        "invalid",
        (2, 0),
    ]
    assert answers[1].sequence == 1
    assert server.reports == 2


def test_implausible_reports_are_refused(opened):
    server = opened()
    bound = LOSS.sensitivity() * (0.5 + (math.sqrt(2) + math.sqrt(2 * math.log(1e9))) / 0.7)
    assert server.apply("ann", 0.7, 0, [0.999 * bound, 0.0]) == 1
    with pytest.raises(ValueError, match="report must be within .* of the loss's centre for μ = 0.7"):
        server.apply("bob", 0.7, 0, [1.001 * bound, 0.0])
    with pytest.raises(ValueError, match="got a distance of 1e\\+300"):
        server.apply("bob", 0.7, 0, [1e300, 0.0])


@pytest.mark.parametrize("loss", [LOSS, cs.losses.HuberRegression()])
def test_honest_reports_are_plausible(loss):
    """5,000 with the longest gradient. ‖ω‖ of up to four numbers is beyond the bound with probability 1e-13 (χ)."""
    columns, mu = 3, 2.0
    features = np.full(columns, math.sqrt(2.0 / columns))
    theta = np.zeros(columns + isinstance(loss, cs.losses.HuberRegression))
    ball, rng = plausible(loss, theta.size), np.random.default_rng(3)
    label = 1 if loss is LOSS else 1e6
    longest = 0.0
    for _ in range(5000):
        sent = cs.local.report(theta, (features, label), loss, mu, rng=rng)
        ball.check(mu, sent)
        longest = max(longest, float(np.linalg.norm(sent - ball.center)))
    assert longest > 0.4 * ball.radius(mu)  # the bound is not idle


def test_most_budget(opened):
    server = opened(repeats="compose", most_budget=2.0)
    server.apply("ann", 1.5, 0, [0.1, 0.2])
    with pytest.raises(ValueError, match=r"mu must be at most 2 in total for each user, got 2\.12"):
        server.apply("ann", 1.5, 0, [0.1, 0.3])
    with pytest.raises(ValueError, match="mu must be at most 2 for each user, got 2.5"):
        server.apply("bob", 1.5, 0, [0.1, 0.3], lost=2.0)
    assert server.apply("ann", 1.0, 0, [0.1, 0.3]) == 2
    assert server.statement(1e-5).of("ann")["mu"] == pytest.approx(math.hypot(1.5, 1.0))
    server.apply("bob", 1.0, 0, [0.1, 0.3], lost=1.0)
    assert server.statement(1e-5).of("bob")["mu"] == pytest.approx(math.sqrt(2))


def test_what_a_user_has_sent_is_known_after_a_restart(opened, monkeypatch):
    monkeypatch.setattr(server_module, "_SNAPSHOT_EVERY", 3)
    server = opened(repeats="compose", most_budget=2.0)
    for k in range(4):
        server.apply("ann", 0.9, server.version, [0.1, k], lost=0.1)
    again = opened(repeats="compose", most_budget=2.0)
    for version in (0, again.version):
        with pytest.raises(ValueError, match=r"mu must be at most 2 in total for each user, got 2\.02"):
            again.apply("ann", 0.9, version, [0.1, 0.3])


def test_a_failed_ledger_is_opened_again(opened):
    server = opened()
    send(server, 0, 4)
    server._ledger._database.run(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON report BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    )
    with pytest.raises(cs.local.LedgerError, match="disk full"):
        send(server, 4, 5)
    assert server.is_stopped
    with pytest.raises(cs.local.LedgerError, match="disk full"):
        server.turn("eve", "t")
    server.reopen()
    assert not server.is_stopped
    assert send(server, 4, 6)[1] == (6, 1)
    assert bits(server.replay()) == bits(server.state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch must be"),
        ({"round_seconds": 0.0}, "round_seconds must be a number above 0"),
        ({"weights": "mine"}, "weights must be one of 'budget', 'equal'"),
        ({"weight_cap": 0.0}, "weight_cap must be"),
        ({"variance": -1.0}, "variance must be a number of at least 0"),
        ({"trim": 0.5}, r"trim must be at least 0 and below 0\.5, got 0\.5"),
        ({"staleness": -1}, "staleness must be a whole number"),
        ({"most_budget": 0.0}, "most_budget must be a number from"),
        ({"loss": cs.losses.Logistic()}, "loss must state its sensitivity"),
        ({"feature_names": [""]}, "feature_names must be 1 to 200 printable characters"),
    ],
)
def test_wrong_settings(opened, changes, message):
    with pytest.raises(ValueError, match=message):
        opened(**changes)
