"""The report on one model: what it says, that it replaces no foreign file, and how it looks in a browser."""

import math
import re
import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn.pipeline import make_pipeline

import clipsilon as cs
from browser import Browser
from clipsilon.estimators import (
    PrivateGLM,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateScaler,
    noise_spread,
)
from clipsilon.estimators.noise_spread import noise_margins
from clipsilon.report.model_page import detection_limit

pytestmark = pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")


def records(people=3000):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((people, 3)) * [1, 10, 1000]
    y = np.where(X @ [2, 0.1, 0.0] + rng.logistic(size=people) > 1, "yes", "no")
    return X, y


@pytest.fixture(scope="module", autouse=True)
def few_repetitions():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise_spread, "RUNS", 3)
        yield


@pytest.fixture(scope="module")
def pipeline():
    X, y = records()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PrivateLogisticRegression(epsilon=1.0, classes=["no", "yes"])
        return make_pipeline(PrivateScaler(epsilon=1.0), model).fit(X[:2000], y[:2000])


@pytest.fixture(scope="module")
def page(tmp_path_factory, pipeline):
    X, y = records()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = cs.private_scores(pipeline, X[2000:], y[2000:], epsilon=1.0, held_out=True)
        path = tmp_path_factory.mktemp("report") / "page.html"
        cs.write_report(path, pipeline, scores, target="<paid>", columns=["age", "income & wealth", "rate"])
    return path


def words(page):
    return re.sub(r"\s+", " ", re.sub(r"<script.*?</script>|<[^>]+>", " ", page.read_text("utf-8"), flags=re.DOTALL))


def test_what_the_page_says(page):
    text = words(page)
    for phrase in (
        "A private model of &lt;paid&gt;",
        "What was learnt",
        "income &amp; wealth",
        "Coefficients for the class yes",
        "Evaluated privately on 1000 records",
        "fitted to 2000 records by",
        "whether one given record was in it",
        "parallel composition",
        "What is not covered",
        "PrivateScaler: ε",
        "private evaluation: ε",
        "finds at most",
    ):
        assert phrase in text
    assert "<paid>" not in page.read_text("utf-8")


def test_a_model_that_was_not_evaluated_or_not_certified(tmp_path):
    X, y = records(500)
    seeded = PrivateLogisticRegression(epsilon=1.0, classes=["no", "yes"], random_state=0).fit(X / [1, 10, 1000], y)
    cs.write_report(tmp_path / "a.html", seeded)
    text = words(tmp_path / "a.html")
    assert "was not evaluated within a budget" in text
    assert "Nothing is certified: PrivateLogisticRegression" not in text
    assert "Nothing is certified:" in text
    assert "With this mended it would be" in text
    assert "column 3" in text
    regression = PrivateLinearRegression(target_range=(-3, 3)).fit(X / [1, 10, 1000], X[:, 0])
    scores = cs.private_scores(regression, X / [1, 10, 1000], X[:, 0], 1.0)
    cs.write_report(tmp_path / "b.html", regression, scores)
    assert "mean absolute error" in words(tmp_path / "b.html")
    other = PrivateGLM().fit(X / [1, 10, 1000], X[:, 0])
    cs.write_report(tmp_path / "c.html", other)
    assert "was not computed for this model" in words(tmp_path / "c.html")


def test_people_who_are_protected_are_called_so(tmp_path):
    """Neither the budget nor the rows per person matter to the repetitions on made-up rows."""
    X, y = records(1000)
    X, people = X / [1, 10, 1000], np.arange(1000) // 2
    budget = cs.Budget(tmp_path / "a.budget", epsilon=2.0, delta=1e-4)
    model = PrivateLogisticRegression(classes=["no", "yes"], max_rows=1, budget=budget).fit(X, y, groups=people)
    scores = cs.private_scores(model, X, y, 1.0, groups=people)
    cs.write_report(tmp_path / "a.html", model, scores)
    text = words(tmp_path / "a.html")
    for phrase in (
        "fitted to 500 people by",
        "Evaluated privately on 500 people",
        "whether one given person was in it",
    ):
        assert phrase in text
    assert len(budget.charges()) == 1


def test_foreign_files_are_left_alone(tmp_path, pipeline):
    foreign = tmp_path / "mine.html"
    foreign.write_text("<p>mine</p>")
    with pytest.raises(ValueError, match="report must not replace .*mine.html, which clipsilon did not write"):
        cs.write_report(foreign, pipeline)
    assert foreign.read_text() == "<p>mine</p>"
    with pytest.raises(ValueError, match=r"report must be an \.html file in an existing folder"):
        cs.write_report(tmp_path / "page.txt", pipeline)
    with pytest.raises(ValueError, match=r"report must be an \.html file in an existing folder"):
        cs.write_report(tmp_path / "none" / "page.html", pipeline)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 1e-5), (3.0, 1e-3), (50.0, 0.1)])
def test_the_detection_limit_is_that_of_the_worst_mechanism(epsilon, delta):
    """Randomized response that fails with probability δ attains (ε, δ); its tests are combined in all ways."""
    factor = math.exp(epsilon)
    absent = np.array([0.0, (1 - delta) / (1 + factor), (1 - delta) * factor / (1 + factor), delta])
    present = absent[::-1]
    best, left = 0.0, 0.01
    for p, q in sorted(zip(present, absent, strict=True), key=lambda pair: -pair[0] / max(pair[1], 1e-300)):
        used = 1.0 if q == 0 else min(1.0, left / q)
        best, left = best + used * p, left - used * q
    assert detection_limit(epsilon, delta, 0.01) == pytest.approx(best, abs=1e-12)


def test_noise_margins_are_of_the_size_of_the_noise():
    """Against fits to the real table, with fixed seeds: within a factor of four, for three fits each."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((2000, 2))
    y = X[:, 0] + rng.logistic(size=2000) > 0
    fits = [PrivateLogisticRegression(classes=[False, True], random_state=s).fit(X, y) for s in range(100, 103)]
    spread = np.std([fit.coef_ for fit in fits], axis=0, ddof=1).mean()
    ratio = noise_margins(fits[0])[0].mean() / stats.t.ppf(0.975, 2) / spread
    assert 0.25 < ratio < 4
    regression = PrivateLinearRegression(target_range=(-3, 3), random_state=0).fit(X, X[:, 0])
    assert noise_margins(regression)[0].shape == regression.coef_.shape


def test_coefficients_of_empty_columns_are_within_their_margins_of_zero():
    """Nothing but noise moves them, and nothing holds them back; 4.3 deviations, with fixed seeds."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((3000, 12)) * np.repeat([1.0, 0.0], 6)
    y = X[:, 0] + rng.logistic(size=3000) > 0
    fit = PrivateLogisticRegression(classes=[False, True], random_state=5).fit(X, y)
    empty, margins = fit.coef_[0, 6:], noise_margins(fit)[0][0]
    assert np.all(np.abs(empty) < margins[6:])
    assert margins.max() < 20 * empty.std()  # and are not so by being very wide


def test_noise_margins_charge_no_budget(tmp_path):
    budget = cs.Budget(tmp_path / "people.budget", epsilon=2.0, delta=1e-4)
    rng = np.random.default_rng(1)
    people = np.arange(600) // 2
    model = PrivateLogisticRegression(classes=[False, True], budget=budget, max_rows=1, method="dpgd")
    model.fit(rng.standard_normal((600, 2)), rng.random(600) < 0.5, groups=people)
    assert noise_margins(model) is not None
    assert len(budget.charges()) == 1


# -- in a browser -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with Browser() as one:
        yield one


@pytest.mark.verify
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_fits_the_screen_and_draws_both_curves(browser, page, width, dark):
    browser.open(page, width, dark=dark)
    assert browser.errors == []
    assert browser.requests == [page.as_uri()]  # nothing else is fetched
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    if width >= 390:  # tables of three columns do not scroll in their boxes
        fits = "box.scrollWidth <= box.clientWidth || box.querySelectorAll('thead th').length > 3"
        assert browser.run(f"[...document.querySelectorAll('.wide')].every(box => {fits})")
    drawn = browser.run(
        "[...document.querySelectorAll('figure svg[viewBox]')].map(s => s.querySelectorAll('.line, .band').length)"
    )
    assert drawn == [3, 3]  # a curve, its band, and the diagonal
    ink, paper = browser.run(
        "['color', 'backgroundColor'].map(key => getComputedStyle(document.body)[key].match(/\\d+/g).map(Number)[0])"
    )
    assert (ink > 200 and paper < 50) if dark else (ink < 50 and paper > 200)


@pytest.mark.verify
def test_the_page_works_without_scripts(browser, page):
    browser.open(page, scripts=False)
    about = browser.call("Runtime.evaluate", expression="document.images.length", returnByValue=True)
    assert about["result"]["value"] == 2


@pytest.mark.verify
def test_values_can_be_read_and_downloaded(browser, page):
    browser.open(page)
    browser.run("document.querySelector('figure .plot').focus()")
    browser.press("End")
    assert "true positive rate" not in browser.run("document.querySelector('figure .reading').innerText")
    assert "1" in browser.run("document.querySelector('figure .reading').innerText")
    links = browser.run("[...document.querySelectorAll('a.csv, a.svg')].map(a => a.href.slice(0, 5))")
    assert set(links) == {"data:"}
    assert len(links) == 6
    assert browser.errors == []
