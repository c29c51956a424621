"""The page in a real browser."""

import csv
import io

import pytest

import clipsilon as cs
import made_up
from browser import Browser
from clipsilon.local.study import make_study
from clipsilon.report.simulation_page import write_simulation_page
from clipsilon.reproduce import runner
from clipsilon.reproduce.laboratory import Laboratory

pytestmark = pytest.mark.verify

CURVES = "document.querySelector('#made-up-curves figure')"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    runner.reproduce(made_up.EXPERIMENTS, made_up.Bench(), folder)
    return folder


@pytest.fixture(scope="module")
def browser():
    with Browser() as one:
        yield one


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_every_figure_is_drawn_and_nothing_sticks_out(browser, report, width, dark):
    browser.open(report / "index.html", width, dark=dark)
    assert browser.errors == []
    assert browser.requests == [(report / "index.html").as_uri()]  # nothing else is fetched
    figures, drawn = browser.run(
        "[document.querySelectorAll('figure').length,"
        " [...document.querySelectorAll('figure svg[viewBox]')].map(svg => svg.querySelectorAll('.line, .dot').length)]"
    )
    assert figures == len(drawn) == 6
    assert drawn[:2] == [4, 6]  # three lines and a point; a line of two pieces with its four points
    assert drawn[2:] == [2, 0, 2, 0]
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    ink, paper = browser.run(
        "['color', 'backgroundColor'].map(key => getComputedStyle(document.body)[key].match(/\\d+/g).map(Number)[0])"
    )
    assert (ink > 200 and paper < 50) if dark else (ink < 50 and paper > 200)
    widths = browser.run(
        "[...document.querySelectorAll('figure svg[viewBox]')].map(svg => svg.getBoundingClientRect().right)"
    )
    assert max(widths) <= width


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_about_a_simulated_crowd(browser, tmp_path, width):
    crowd = cs.local.Crowd(2000, dimension=2)
    step = cs.schedules.Constant(0.01)
    study = make_study(crowd, cs.local.Averaging(), [5, 10], lambda batch: step, replicates=2, seed=0)
    write_simulation_page(tmp_path / "page.html", study)
    browser.open(tmp_path / "page.html", width)
    assert browser.errors == []
    assert browser.requests == [(tmp_path / "page.html").as_uri()]
    lines = "[...document.querySelectorAll('figure svg[viewBox]')].map(svg => svg.querySelectorAll('.line').length)"
    assert browser.run(lines) == [4, 2, 2]
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")


def test_errors_would_be_seen(browser, tmp_path):
    (tmp_path / "broken.html").write_text(
        "<p style='width: 500px'>a</p><script>console.error('b'); none()</script><img src=c.png>"
    )
    browser.open(tmp_path / "broken.html", 390)
    assert len(browser.errors) == 3
    assert len(browser.requests) == 2
    assert browser.run("document.documentElement.scrollWidth") > 390


def test_series_can_be_hidden(browser, report):
    browser.open(report / "index.html")
    top = f"[...{CURVES}.querySelectorAll('.plot svg text')].map(node => node.textContent)"
    before = browser.run(top)
    for _ in range(2):
        browser.run(f"{CURVES}.querySelectorAll('.legend button')[1].click()")
    assert browser.run(top) == before
    browser.run(f"{CURVES}.querySelectorAll('.legend button')[1].click()")
    assert browser.run(f"{CURVES}.querySelectorAll('.plot .line').length") == 2
    assert browser.run(f"{CURVES}.querySelectorAll('.legend button')[1].getAttribute('aria-pressed')") == "false"
    assert browser.run(top) != before  # the axis fits what is left
    for k in (0, 2, 3):
        browser.run(f"{CURVES}.querySelectorAll('.legend button')[{k}].click()")
    assert "nothing to draw" in browser.run(top)
    assert browser.errors == []


@pytest.mark.parametrize("axis", ["x", "y"])
def test_axes_can_be_linear_or_logarithmic(browser, report, axis):
    browser.open(report / "index.html")
    points = f"{CURVES}.querySelector('.plot .line').getAttribute('d')"
    button = f"{CURVES}.querySelector('.axis-{axis}')"
    before = browser.run(points)
    browser.run(f"{button}.click()")
    assert browser.run(f"{button}.textContent").endswith("linear")
    assert browser.run(points) != before
    browser.run(f"{button}.click()")
    assert browser.run(points) == before
    browser.run("document.querySelectorAll('figure')[1].querySelector('.axis-y').click()")  # has a negative value
    assert "NaN" not in browser.run("document.querySelectorAll('figure')[1].querySelector('svg[viewBox]').outerHTML")
    assert browser.errors == []


def test_values_can_be_read_with_the_mouse(browser, report):
    browser.open(report / "index.html")
    browser.run(f"{CURVES}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
    left, right, middle = browser.run(
        f"(box => [box.left, box.right, box.top + box.height / 2])({CURVES}.querySelector('.plot').getBoundingClientRect())"
    )
    browser.move(right - 14, middle)
    reading = browser.run(f"{CURVES}.querySelector('.reading').innerText")
    clipped, _ = made_up.gaps(20)
    assert "100\u202f000" in reading
    assert f"{clipped.mean(axis=0)[-1]:.4g}" in reading
    edges = browser.run(f"(box => [box.left, box.right])({CURVES}.querySelector('.reading').getBoundingClientRect())")
    assert left <= edges[0] < edges[1] <= right
    browser.move(1, 1)
    assert browser.run(f"{CURVES}.querySelector('.reading').hidden")


def test_values_can_be_read_with_a_finger(browser, report):
    browser.open(report / "index.html", 390)
    browser.run(f"{CURVES}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
    x, y = browser.run(
        f"(box => [box.right - 14, box.top + 99])({CURVES}.querySelector('.plot').getBoundingClientRect())"
    )
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
    browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser.call("Emulation.setTouchEmulationEnabled", enabled=False)
    assert "100\u202f000" in browser.run(f"{CURVES}.querySelector('.reading').innerText")  # after the finger has gone
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")


def test_values_can_be_read_with_the_keyboard(browser, report):
    browser.open(report / "index.html")
    browser.run(f"{CURVES}.querySelector('.plot').focus()")
    read = f"{CURVES}.querySelector('.reading').innerText.split('\\n')[1]"
    found = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "Home"):
        browser.press(key)
        found.append(browser.run(read))
    assert found == ["1", "2", "1", "100\u202f000", "1"]
    browser.press("Escape")
    assert browser.run(f"{CURVES}.querySelector('.reading').hidden")
    names = browser.run(
        "[...document.querySelectorAll('button, a, .plot')].map(node => node.ariaLabel || node.textContent.trim())"
    )
    assert all(names)
    assert browser.errors == []


def test_csv_comes_from_the_page_itself(browser, report):
    browser.open(report / "index.html")
    catch = "document.addEventListener('click', event => event.preventDefault())"
    browser.run(f"{catch}; document.querySelectorAll('a.csv').forEach(link => link.click())")
    files = browser.run(
        "Promise.all([...document.querySelectorAll('a.csv')].map(link => fetch(link.href).then(file => file.text())))"
    )
    names = [f"made-up-curves/{name}" for name in ("chart-1", "chart-2", "table-1")]
    for name, text in zip(names, files[:3], strict=True):
        kept = csv.reader(io.StringIO((report / f"{name}.csv").read_text(encoding="utf-8"), newline=""))
        for row, same in zip(csv.reader(io.StringIO(text, newline="")), kept, strict=True):
            assert list(map(_cell, row)) == list(map(_cell, same))


def _cell(text):
    try:
        return "" if text == "inf" else float(text)  # the page has no infinite points
    except ValueError:
        return text


def test_links_lead_somewhere(browser, report):
    browser.open(report / "index.html")
    for name in ("made-up-curves", "made-up-nothing"):
        browser.run(
            f"document.documentElement.style.scrollBehavior = 'auto'; document.querySelector('a[href=\"#{name}\"]').click()"
        )
        assert 0 <= browser.run(f"document.getElementById('{name}').getBoundingClientRect().top") < 900
    links = browser.run("[...document.querySelectorAll('a.svg, a.png')].map(link => link.href)")
    assert len(links) == 12
    size = "new Promise(end => {{ const i = new Image(); i.onload = () => end(i.naturalWidth); i.onerror = () => end(0); i.src = '{}' }})"
    assert all(browser.run(size.format(link)) > 300 for link in links)


def test_without_scripts_there_are_pictures(browser, report):
    browser.open(report / "index.html", scripts=False)
    widths = browser.run("[...document.images].map(image => image.naturalWidth)")
    assert len(widths) == 6
    assert min(widths) > 300
    assert browser.errors == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the quick report of all experiments; its runs are stored in the user's cache, as by the command."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, runner.reproduce(runner.choose([]), Laboratory(quick=True, progress=False), folder)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_real_report(browser, whole, width, dark):
    folder, done = whole
    browser.open(folder / "index.html", width, dark=dark)
    assert browser.errors == []
    assert browser.requests == [(folder / "index.html").as_uri()]
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    drawn = browser.run(
        "[...document.querySelectorAll('.result figure')].map(figure => figure.querySelectorAll('.line, .dot').length)"
    )
    assert len(drawn) == sum(len(each.result.charts) for each in done)
    assert min(drawn) > 0
    assert "NaN" not in browser.run("[...document.querySelectorAll('.plot')].map(plot => plot.innerHTML).join()")
    assert browser.run("document.querySelectorAll('.tale figure').length") >= 2
    broken = "[...document.querySelectorAll('a[href^=\"#\"]')].filter(link => !document.getElementById(link.hash.slice(1))).length"
    assert browser.run(broken) == 0
    for axis in ("x", "y"):
        browser.run(f"document.querySelectorAll('.axis-{axis}:enabled').forEach(button => button.click())")
    browser.run("document.querySelectorAll('.legend button:first-child').forEach(button => button.click())")
    assert browser.errors == []
    assert "NaN" not in browser.run("[...document.querySelectorAll('.plot')].map(plot => plot.innerHTML).join()")
