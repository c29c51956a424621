"""What the browser's client reports: equal to Python's, to the bit, for the same random words."""

from typing import NamedTuple

import numpy as np
import pytest
from mpmath import mpf, workprec
from numpy.random import SFC64, Generator
from scipy.stats import norm

import clipsilon as cs
import exact_reference as reference
import javascript
import registry
from clipsilon._core import bell_curve, exact_normal, normal_tables
from clipsilon._core.parts import implements
from clipsilon.engine import exact_noise
from clipsilon.local.report import gradient_of, prepare, release
from clipsilon.privacy.auditing import bits
from clipsilon.problems.losses.base import dimension, gradient, gradient_center_of, label_kind, value

pytestmark = javascript.needs_node

DRAW = """
const results = given.map(({words, count}) => {
  const source = replay(words);
  const draws = Array.from({length: count}, () => String(client.integerNormal(source)));
  return {draws, drawn: source.drawn};
});
console.log(JSON.stringify(results));
"""
RELEASE = """
const results = given.map(({gradient, center, sensitivity, mu, words}) =>
  client.release(gradient, center, sensitivity, mu, replay(words)));
console.log(JSON.stringify(results));
"""
GRADIENT = """
const results = given.map(({loss, theta, features, label}) => {
  const made = client.lossOf(loss);
  const about = {sensitivity: made.sensitivity, center: made.center(theta.length)};
  return {...about, gradient: made.gradient(theta, features, label)};
});
console.log(JSON.stringify(results));
"""


def words(seed, count):
    return [str(word) for word in SFC64(seed).random_raw(count)]


def test_the_tables_are_those_of_python(tmp_path):
    found = javascript.run(tmp_path, "console.log(JSON.stringify(client.normalTables()));")
    assert found["curve"] == normal_tables.CURVE.tolist()
    assert found["lower"] == normal_tables.LOWER.tolist()
    assert found["starts"] == normal_tables.STARTS.tolist()
    alias = [threshold << 10 | other for threshold, other in zip(found["thresholds"], found["others"], strict=True)]
    assert alias == normal_tables.ALIAS.tolist()


def test_draws_are_those_of_python(tmp_path):
    count = 60_000
    (found,) = javascript.run(tmp_path, DRAW, [{"words": words(1, count + 2000), "count": count}])
    source = SFC64(1)
    assert [int(z) for z in found["draws"]] == exact_noise.draw(Generator(source), count).tolist()
    assert source.random_raw() == int(words(1, found["drawn"] + 1)[-1])  # the same number of words


def test_rare_paths_are_those_of_python(tmp_path):
    """Squeeze failures, undecided boxes that need integers of 279 bits, and the tail with its blocks."""
    scripts, expected = [], []
    for path, first in reference.PATHS.items():
        for seed in range(25):
            source = reference.Script(first, SFC64(seed))
            out = np.empty(3, np.int64)
            exact_noise.fill(source.bit_generator(), out)
            scripts.append({"words": [*map(str, first), *words(seed, 200)], "count": 3})
            expected.append((path, seed, [str(z) for z in out], source.drawn))
    found = javascript.run(tmp_path, DRAW, scripts)
    for (path, seed, draws, drawn), one in zip(expected, found, strict=True):
        assert (one["draws"], one["drawn"]) == (draws, drawn), (path, seed)


def test_estimates_of_the_curve_are_those_of_python(tmp_path):
    rng = np.random.default_rng(3)
    boxes = [(strip, place) for strip in range(1024) for place in (0, 2**25 - 1, *rng.integers(2**25, size=8).tolist())]
    body = "console.log(JSON.stringify(given.map(([strip, place]) => Number(client.estimateCurve(strip, BigInt(place))))));"
    found = javascript.run(tmp_path, body, boxes)
    assert found == [int(exact_normal._estimate(strip, place)) for strip, place in boxes]


@pytest.mark.parametrize("offset", [-200, -12, 12, 200])
def test_digits_are_drawn_until_they_decide(tmp_path, offset):
    """y agrees with the curve in its first six limbs, so that twelve are needed; in a strip and between 16 and 24.

    An offset of 12 units is not decided by twelve limbs either, as the margin is 16.
    """
    body = """
const results = given.map(({cell, height, known, words}) => {
  const source = replay(words);
  return [client.isUnderCurve(source, BigInt(cell), BigInt(height), known), source.drawn];
});
console.log(JSON.stringify(results));
"""
    cases, expected = [], []
    for cell, known in ((2**32 + 5, 1), ((2 << 35) + 7, 2)):
        with workprec(800):
            y = reference.limbs(int(reference.bell(mpf(cell) / 2**32) * mpf(2) ** (31 * 12 - 31)) + offset, 12)
        script = [0, *[0] * 4, *y[known:6], *[0] * 6, *y[6:]]
        script += [int(word) for word in words(3, 30)]
        source = reference.Script(script)
        assert bell_curve.is_under_curve(source.bit_generator(), cell, y[0] >> 33, known) == (offset < 0)
        cases.append({"cell": str(cell), "height": y[0] >> 33, "known": known, "words": [str(w) for w in script]})
        expected.append([offset < 0, source.drawn])
    assert javascript.run(tmp_path, body, cases) == expected
    assert [drawn > 30 for _, drawn in expected] == [abs(offset) < 16] * 2


def test_words_come_from_the_cryptographic_generator_and_none_is_used_twice(tmp_path):
    body = """
let filled = 0;
Object.defineProperty(globalThis, "crypto", {value: {getRandomValues(out) {
  for (let i = 0; i < out.length; i++) out[i] = BigInt(filled++);
}}});
const next = client.systemWords();
console.log(JSON.stringify(Array.from({length: 1000}, () => Number(next()))));
"""
    assert javascript.run(tmp_path, body) == list(range(1000))
    body = """
Object.defineProperty(globalThis, "crypto", {value: undefined});
Math.random = () => { throw new Error("never"); };
const loss = client.lossOf({name: "MallowsLogistic", parameters: {}});
try { client.report([0], {features: [1], label: 1}, loss, 1); } catch (problem) { console.log(JSON.stringify(problem.message)); }
"""
    assert "no cryptographic random numbers; no report has left" in javascript.run(tmp_path, body)


def test_a_gradient_that_is_not_finite_counts_as_the_centre(tmp_path):
    body = """
const release = gradient => client.release(gradient, [0.5, -2], 1, 1, replay(given));
console.log(JSON.stringify([[0.5, -2], [Infinity, 0], [0, NaN]].map(release)));
"""
    expected, *found = javascript.run(tmp_path, body, words(3, 20))
    assert found == [expected, expected]


class Given(NamedTuple):
    """A loss whose gradient is the features, with any sensitivity and centre."""

    delta: float
    shift: float

    def sensitivity(self):
        return self.delta

    def gradient_center(self, dimension):
        return self.shift * np.arange(dimension)


implements(value, Given)(lambda loss, theta, features, label: 0.0)


@implements(gradient, Given)
def _(loss, theta, features, label, out):
    for j in range(features.size):
        out[j] = features[j]


def gradients():
    """Yield gradients with a sensitivity, a shift of the centre and a budget: short, long, huge, tiny, on the edge."""
    rng = np.random.default_rng(4)
    for d in (1, 2, 3, 7, 8, 9, 15, 16, 17, 100, 127, 128, 129, 136, 137, 255, 256, 300, 1000):
        for size in (0.0, 1e-300, 1e-12, 0.3, 1.0, 40.0, 1e99):
            delta, mu = float(np.exp(rng.normal())), float(np.exp(rng.normal()))
            yield size * rng.standard_normal(d), delta, float(rng.choice([0.0, 0.37])), mu
        for _ in range(4):  # a grid so fine that the last bit of the clip shows
            yield rng.standard_normal(d), 0.7, 0.0, 1e6
        edge = rng.standard_normal(d)
        yield edge, 2 * float(np.linalg.norm(edge)), 0.0, 1.0
    for mu in (1e-6, 0.1, 3.0, 1e6):
        yield rng.standard_normal(5), 2.0, 0.1, mu


def test_releases_of_a_gradient_are_those_of_python_to_the_bit(tmp_path):
    cases, expected = [], []
    for seed, (vector, delta, shift, mu) in enumerate(gradients()):
        script = words(seed, vector.size + 200)
        loss, source = Given(delta, shift), reference.Script(script)
        theta, rng = np.zeros(vector.size), Generator(source.bit_generator())
        expected.append(release(prepare((vector, 0.0), loss), theta, mu, rng).tolist())
        center = gradient_center_of(loss, vector.size).tolist()
        cases.append({"gradient": vector.tolist(), "center": center, "sensitivity": delta, "mu": mu, "words": script})
    assert javascript.run(tmp_path, RELEASE, cases) == expected
    assert sum(map(len, expected)) > 10_000


LOSSES = [loss for loss in registry.LOSSES if hasattr(loss, "sensitivity")]


def described(loss):
    """Return a loss as the service describes it."""
    return {"name": type(loss).__name__, "parameters": loss._asdict()}


def test_every_loss_that_states_its_sensitivity_is_there(tmp_path):
    body = "console.log(JSON.stringify([...client.LOSSES].map(([name, {parameters}]) => [name, parameters])));"
    found = {name: set(parameters) for name, parameters in javascript.run(tmp_path, body)}
    assert found == {type(loss).__name__: set(loss._fields) for loss in LOSSES}


def problems(loss):
    """Yield records and models of ordinary and extreme size."""
    rng = np.random.default_rng(8)
    for size in (1e-8, 0.1, 1.0, 30.0, 1e100):
        for d in (1, 3, 12):
            for _ in range(10):
                x = np.clip(size * rng.standard_normal(d), -1e100, 1e100)
                theta = np.clip(rng.choice([1.0, size]) * rng.standard_normal(dimension(loss, d)), -1e100, 1e100)
                real = float(np.clip(size * rng.standard_normal(), -1e100, 1e100))
                yield theta, x, float(rng.integers(2)) if label_kind(loss) == "binary" else real


@pytest.mark.parametrize(
    "loss", [*LOSSES, *(cs.losses.HuberRegression(c, 0.5) for c in (1e-3, 0.2, 4.0, 20.0))], ids=str
)
def test_gradients_are_those_of_python_but_for_the_last_bits(tmp_path, loss):
    """exp() and erf() differ in the last bit between platforms; a gradient is clipped after it is computed."""
    cases, expected = [], []
    for theta, x, label in problems(loss):
        expected.append(gradient_of(prepare((x, label), loss), theta))
        cases.append({"loss": described(loss), "theta": theta.tolist(), "features": x.tolist(), "label": label})
    found = javascript.run(tmp_path, GRADIENT, cases)
    for one, case, exact in zip(found, cases, expected, strict=True):
        np.testing.assert_allclose(one["gradient"], exact, rtol=1e-12, atol=1e-12)
        assert one["sensitivity"] == pytest.approx(loss.sensitivity(), rel=1e-15)
        np.testing.assert_allclose(one["center"], gradient_center_of(loss, len(case["theta"])), rtol=0, atol=1e-14)


REPORTS = """
const loss = client.lossOf({name: "MallowsLogistic", parameters: {}});
const results = given.records.map(({features, label}) => client.report(given.theta, {features, label}, loss, given.mu));
console.log(JSON.stringify(results));
"""


@pytest.mark.parametrize("draws", [1000, pytest.param(10_000, marks=pytest.mark.verify)])
def test_the_low_bits_of_reports_do_not_disprove_a_label(tmp_path, draws):
    """As for Python's reports: a guess is right with at most Φ(μ/2); false alarm: 5.5 deviations, 2e-8."""
    loss, mu, rng = cs.losses.MallowsLogistic(), 0.1, np.random.default_rng(2)
    theta, features, truth = rng.standard_normal(20), rng.standard_normal((draws, 20)), rng.integers(2, size=draws)
    records = [{"features": x.tolist(), "label": int(y)} for x, y in zip(features, truth, strict=True)]
    reports = np.array(javascript.run(tmp_path, REPORTS, {"theta": theta.tolist(), "mu": mu, "records": records}))
    old = Generator(SFC64(1)).standard_normal(reports.shape)
    labels = np.array([[gradient_of(prepare((x, y), loss), theta) for x in features] for y in (0, 1)])
    allowed = norm.cdf(mu / 2) + 5.5 * 0.5 / np.sqrt(draws)
    scale = float(np.nextafter(loss.sensitivity() / mu, np.inf))
    assert guessed(reports, labels, truth, scale) < allowed
    floats = labels[truth, np.arange(draws)] + scale * old
    assert guessed(floats, labels, truth, scale) > 0.8  # the attack finds floating-point noise


def guessed(reports, labels, truth, scale):
    """Return how often the label for which fewer numbers are impossible is the true one; a tie counts one half."""
    wrong = [
        (~bits.is_possible(reports.ravel(), one.ravel(), scale)).reshape(reports.shape).sum(axis=1) for one in labels
    ]
    return float(np.mean(0.5 + 0.5 * np.sign(wrong[0] - wrong[1]) * (2 * truth - 1)))
