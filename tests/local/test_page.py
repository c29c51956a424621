"""The page for people in a real browser, and attempts to make it spend twice."""

import json
import shutil
import time
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.random import SFC64, Generator
from scipy.stats import norm

import browser as browsers
import clipsilon as cs
from clipsilon.engine import exact_noise
from clipsilon.local.browser import FILES
from clipsilon.local.enrolment import enrolment_token
from clipsilon.local.ledger.base import Entry
from clipsilon.local.service import Access, running
from local_stub import Stub

needs_browser = pytest.mark.skipif(
    not any(map(shutil.which, browsers.NAMES)), reason=f"none of {', '.join(browsers.NAMES)} is installed"
)
JOIN = """import('/client.js').then(async ({Client}) => {
  const client = new Client(location.origin);
  window.outcome = client.join({user: 'ann', record: {features: [1, 2, 3], label: 1}, mu: 1})
    .then(receipt => `receipt ${receipt.sequence}`, problem => problem.message);
})"""


def test_the_page_needs_nothing_from_elsewhere():
    page = FILES["/"]
    links = [word for word in page.content.decode().split('"') if word.startswith(("http:", "https:", "//"))]
    assert links == ["http://www.w3.org/2000/svg"]  # the name of a format, which nobody fetches
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self' 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "form-action 'none'" in policy
    assert b" name=" not in page.content.split(b"<form")[1].split(b"</form>")[0]  # so a form would send nothing


@pytest.fixture(scope="module")
def browser():
    with browsers.Browser() as one:
        yield one


def wait_for(browser, expression, wanted=True):
    for _ in range(300):
        if browser.run(expression) == wanted:
            return
        time.sleep(0.1)
    raise AssertionError(f"{expression} is {browser.run(expression)!r}, not {wanted!r}; {browser.errors}")


def text(name):
    return f"document.getElementById('{name}').textContent"


def is_shown(name):
    return f"document.getElementById('{name}').checkVisibility()"


def set_value(browser, name, value):
    browser.run(f"document.getElementById('{name}').value = {json.dumps(value)}")
    browser.run(f"document.getElementById('{name}').dispatchEvent(new Event('input'))")


def enter(browser, user, values=("1.5", "-0.25", "3"), label="1"):
    wait_for(browser, is_shown("form"))
    for j, value in enumerate(values):
        set_value(browser, f"feature-{j}", value)
    set_value(browser, "label", label)
    set_value(browser, "user", user)


def click(browser, name):
    browser.run(f"document.getElementById('{name}').click()")


@contextmanager
def real_service(path, access=Access(), **settings):  # noqa: B008
    """Run the real service on a new ledger; yield the server and the URL."""
    step = cs.schedules.Power(0.2, 0.5)
    with cs.local.Server(path / "ledger.db", step=step, **settings) as server, running(server, access=access) as url:
        yield server, url


def entries(server):
    return [event for event in server._ledger.events() if isinstance(event, Entry)]


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(320, True), (1280, False)])
def test_a_person_takes_part(browser, tmp_path, width, dark):
    settings = {"start": [0.0] * 3, "loss": cs.losses.MallowsLogistic(), "feature_names": ["Age", "Income", "Years"]}
    with real_service(tmp_path, **settings) as (server, url):
        browser.open(f"{url}/", width, dark=dark)
        enter(browser, "ann")
        set_value(browser, "mu", "2")
        percent = f"{np.ceil(1000 * norm.cdf(1.0)) / 10:.1f} %"
        assert percent in browser.run(text("sentence"))
        click(browser, "send")
        wait_for(browser, is_shown("receipt"))
        assert browser.run(text("sequence")) == "1"
        assert browser.run(text("stated")) == "μ = 2"
        assert [browser.run(f"document.getElementById('{name}').value") for name in ("feature-0", "label")] == ["", ""]
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.errors == []
        assert {one.removeprefix(url) for one in browser.requests if not one.startswith("data:")} == {
            *("/", "/client.js", "/task", "/turn", "/report"),
        }
        ink, paper = browser.run(
            "['color', 'backgroundColor'].map(key => getComputedStyle(document.body)[key].match(/\\d+/g).map(Number)[0])"
        )
        assert (ink > 200 and paper < 50) if dark else (ink < 50 and paper > 200)
        (entry,) = entries(server)
        assert (entry.user, entry.mu, entry.lost) == ("ann", 2.0, 0.0)
        assert server.theta.tolist() == (-0.2 * entry.report).tolist()  # the first step, to the last bit
        assert server.statement(1e-5).of("ann")["mu"] == 2.0


@needs_browser
def test_a_keyboard_is_enough(browser, tmp_path):
    with real_service(tmp_path, start=[0.0] * 3, loss=cs.losses.MallowsLogistic()) as (server, url):
        browser.open(f"{url}/", 390)
        wait_for(browser, is_shown("form"))
        seen = []
        for _ in range(7):
            browser.press("Tab", windowsVirtualKeyCode=9)
            name = browser.run("document.activeElement.id")
            seen.append(name)
            if name == "mu":
                before = browser.run(text("sentence"))
                browser.press("ArrowRight", windowsVirtualKeyCode=39)
                assert browser.run(text("sentence")) != before
            elif name == "label":
                browser.press("1", text="1")
            elif name != "send":
                browser.type("2")
        assert seen == ["mu", "feature-0", "feature-1", "feature-2", "label", "user", "send"]
        browser.press("Enter", windowsVirtualKeyCode=13, text="\r")
        wait_for(browser, is_shown("receipt"))
        assert browser.run("document.activeElement.id") == "receipt"
        assert [(entry.user, entry.mu) for entry in entries(server)] == [("2", 1.1)]


@needs_browser
def test_an_enrolled_person_reports_again_in_a_later_round(browser, tmp_path):
    """A wide regression, in rounds that end after a time; the token of another user is refused before a report is made."""
    secret = b"a secret of the service"
    settings = {"start": [0.0] * 41, "loss": cs.losses.HuberRegression(), "batch": 10, "most_budget": 0.6}
    settings["round_seconds"] = 0.5
    access = Access(secret=secret)
    with real_service(tmp_path, access, repeats="compose", **settings) as (server, url):
        browser.open(f"{url}/", 390)
        wait_for(browser, is_shown("token-field"))
        assert browser.run("Number(document.getElementById('mu').max)") == 0.6

        def fill(token, mu):
            fields = {"list": ", ".join(["0.5"] * 40), "label": "2.5", "user": "ann", "token": token, "mu": mu}
            for name, value in fields.items():
                set_value(browser, name, value)
            click(browser, "send")

        fill(enrolment_token(secret, "bob"), "0.4")
        wait_for(browser, f"{text('trouble')}.includes('before a report left the device: the enrolment token')")
        fill(enrolment_token(secret, "ann"), "0.4")
        wait_for(browser, is_shown("receipt"))
        wait_for(browser, is_shown("again-field"))
        assert "under your name (μ = 0.4 in all)" in browser.run(text("sentence"))
        click(browser, "again")
        assert "under your name and this report (μ = 0.566 in all)" in browser.run(text("sentence"))
        fill(enrolment_token(secret, "ann"), "0.5")
        wait_for(browser, f"{text('trouble')}.includes('the most that this service takes from a person')")
        fill(enrolment_token(secret, "ann"), "0.4")
        wait_for(browser, text("sequence"), "2")
        first, second = entries(server)
        assert [(entry.mu, entry.report.size) for entry in (first, second)] == [(0.4, 41)] * 2
        assert first.round < second.round  # one report per person in a round
        assert browser.run(text("total")).startswith("μ = 0.566")


@needs_browser
def test_names_from_the_service_are_text_and_what_is_wrong_is_said(browser):
    evil = "<img src=x onerror=\"document.title='run'\">"
    stub = Stub(features=[evil, "b", "c"])
    with stub.running() as url:
        browser.open(f"{url}/")
        wait_for(browser, is_shown("form"))
        assert browser.run("document.querySelector('#fields label').textContent") == evil
        assert browser.run("document.images.length") == 0
        enter(browser, "ann", values=("1e200", "1", "1"))
        click(browser, "send")
        wait_for(browser, text("trouble"), "Features must be a list of numbers up to 1e+100.")
        assert stub.turns == []
        stub.task["loss"] = {"name": "Logistic", "parameters": {}}
        browser.open(f"{url}/")
        wait_for(browser, text("trouble"), 'Loss must be one of MallowsLogistic, HuberRegression, got "Logistic".')
        assert not browser.run(is_shown("form"))
        browser.open(f"{url}/", scripts=False)
    assert stub.turns == stub.bodies == []


@needs_browser
def test_draws_in_the_browser_are_those_of_python(browser):
    count = 2000
    words = [str(word) for word in SFC64(5).random_raw(count + 100)]
    with Stub().running() as url:
        browser.open(f"{url}/")
        found = browser.run(
            f"import('/client.js').then(({{integerNormal}}) => {{ const words = {json.dumps(words)}; let next = 0;"
            f"return Array.from({{length: {count}}}, () => String(integerNormal(() => BigInt(words[next++])))); }})"
        )
    assert [int(z) for z in found] == exact_noise.draw(Generator(SFC64(5)), count).tolist()


@needs_browser
def test_two_tabs_send_one_report(browser):
    """Both ask for a turn before either has written anything down."""
    stub = Stub()
    stub.barrier = 2
    with stub.running() as url:
        for tab in (0, 1):
            browser.use(tab)
            browser.open(f"{url}/")
            browser.run(JOIN)
        outcomes = []
        for tab in (1, 0):
            browser.use(tab)
            outcomes.append(browser.run("window.outcome"))
    assert len(stub.turns) == 2
    assert len(set(stub.bodies)) == 1
    assert sorted(outcomes)[1] == "receipt 1"
    assert sorted(outcomes)[0].startswith('another window has used the account of "ann" meanwhile; no report has left')


@needs_browser
def test_after_a_reload_the_same_bytes_are_sent(browser):
    stub = Stub(repeats="refuse")
    stub.garbage = 10**6
    with stub.running() as url:
        browser.open(f"{url}/")
        enter(browser, "ann")
        click(browser, "send")
        assert stub.arrived.wait(30)
        stub.theta = [5.0] * 3  # another model, which would make another report
        browser.open(f"{url}/")
        wait_for(browser, is_shown("waiting"))
        assert browser.run(text("waiting-user")) == "ann"
        stub.garbage = 0
        click(browser, "resend")
        wait_for(browser, is_shown("receipt"))
        assert len(set(stub.bodies)) == 1
        wait_for(browser, is_shown("waiting"), False)
        browser.open(f"{url}/")
        enter(browser, "ann")  # the same name once more
        wait_for(browser, text("history"), "A report under this name was accepted; this service takes one per person.")
        browser.run("document.getElementById('send').disabled = false")
        click(browser, "send")
        wait_for(browser, f"{text('trouble')}.startsWith('Again must be true for a second report')")
    assert len(set(stub.bodies)) == 1


@needs_browser
def test_a_browser_that_is_killed_remembers_what_it_sent(tmp_path):
    """The process is killed as soon as the report arrives: the account must be on disk before."""
    stub = Stub()
    stub.silent = True
    with stub.running() as url:
        with browsers.Browser(tmp_path) as first:
            first.open(f"{url}/")
            first.run(JOIN)
            assert stub.arrived.wait(30)
        stub.silent = False
        with browsers.Browser(tmp_path) as second:
            second.open(f"{url}/")
            wait_for(second, is_shown("waiting"))
            second.run(JOIN)
            assert second.run("window.outcome") == "receipt 1"
            assert (
                second.run(
                    "import('/client.js').then(({Client}) => new Client(location.origin).spent('ann')).then(({mu}) => mu)"
                )
                == 1
            )
    assert len(set(stub.bodies)) == 1
