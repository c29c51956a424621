"""The page of a service in a real browser."""

import time

import numpy as np
import pytest

import crowds
from browser import Browser
from clipsilon.live import Stream
from clipsilon.live.page import PAGE, POLICY
from clipsilon.live.service import running

X, Y = crowds.population()


def test_the_page_needs_nothing_from_elsewhere():
    links = [word for word in PAGE.split('"') if word.startswith(("http:", "https:", "//"))]
    assert links == ["http://www.w3.org/2000/svg"]  # the name of a format, which nobody fetches
    assert POLICY.startswith("default-src 'none'")


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    with Stream(tmp_path_factory.mktemp("live") / "run.db", **crowds.settings(limit=1.2)) as one:
        crowds.feed(one, X, Y, 0, 200)
        one.submit([{"person": "p0", "features": X[0].tolist(), "label": 1}], version=one.model.version)
        yield one


@pytest.fixture(scope="module")
def url(stream):
    with running(stream, crowds.TOKEN) as one:
        yield one


@pytest.fixture(scope="module")
def browser():
    with Browser() as one:
        yield one


def text(browser, name):
    return browser.run(f"document.getElementById('{name}').textContent")


def wait_for(browser, expression, wanted=True):
    for _ in range(300):
        if browser.run(expression) == wanted:
            return
        time.sleep(0.1)
    raise AssertionError(f"{expression} is {browser.run(expression)!r}, not {wanted!r}; {browser.errors}")


def enter_token(browser, token):
    browser.run(f"document.getElementById('token').value = '{token}'; document.querySelector('#form button').click()")


@pytest.mark.verify
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_shows_the_model_and_nothing_sticks_out(browser, url, stream, width, dark):
    browser.open(f"{url}/", width, dark=dark)
    wait_for(browser, "document.querySelectorAll('#path .line').length", 5)
    assert text(browser, "version") == "20"
    assert (text(browser, "used"), text(browser, "used-of")) == ("200", "records used, of 403")
    assert text(browser, "epsilon") == f"{stream.statement().certified:.4g}"
    assert int(text(browser, "left")) == stream.statement().records - 403 > 0
    assert browser.run("document.querySelectorAll('#reasons li').length") == len(stream.statement().reasons)
    assert browser.run("document.getElementById('inside').hidden")
    assert "p0" not in browser.run("document.documentElement.outerHTML")
    enter_token(browser, crowds.TOKEN)
    wait_for(browser, "document.querySelectorAll('#reaction .line').length", 5)
    assert text(browser, "accepted") == "200"
    assert text(browser, "refused-why") == "refused: 1 repeated"
    assert float(text(browser, "gap")) == pytest.approx(stream.expected_gap().gap, rel=1e-3)
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.errors == []
    assert {one.removeprefix(url) for one in browser.requests if not one.startswith("data:")} <= {
        *("/", "/model", "/statement", "/history", "/inside"),
    }
    ink, paper = browser.run(
        "['color', 'backgroundColor'].map(key => getComputedStyle(document.body)[key].match(/\\d+/g).map(Number)[0])"
    )
    assert (ink > 200 and paper < 50) if dark else (ink < 50 and paper > 200)


@pytest.mark.verify
def test_the_page_updates_itself_and_says_what_is_wrong(browser, tmp_path):
    with Stream(tmp_path / "run.db", **crowds.settings()) as stream:
        with running(stream, crowds.TOKEN) as url:
            browser.open(f"{url}/", 390)
            wait_for(browser, "document.getElementById('version').textContent", "0")
            crowds.feed(stream, X, Y, 0, 50)
            wait_for(browser, "document.getElementById('version').textContent", "5")
            points = browser.run("document.querySelector('#path .line').getAttribute('points')").split()
            assert len(points) == 6
            heights = [float(point.split(",")[1]) for point in points]
            path = np.array([one.theta[0] for one in stream.deployments()])
            assert np.corrcoef(heights, path)[0, 1] < -0.999  # y runs downwards
            enter_token(browser, "wrong")
            wait_for(browser, "document.getElementById('inside-trouble').textContent", "the token is missing or wrong.")
            stream.close()
            wait_for(browser, "document.getElementById('trouble').textContent.includes('is closed; open it again.')")
        wait_for(browser, "document.getElementById('trouble').textContent", "The service does not answer.")
