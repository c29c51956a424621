"""Paper 5's upper bounds: they hold over simulated runs, and grow with the rank, not with the dimension."""

import warnings
from typing import NamedTuple

import numpy as np
import pytest

import clipsilon as cs
import reference
from clipsilon.engine.means import mean_gradient
from clipsilon.problems.losses.base import margin_value, slope
from clipsilon.theory import glm


class Signed(NamedTuple):
    """A user's loss that is convex only for labels above zero."""


@cs.implements(margin_value, Signed)
def _(loss, margin, label):
    return label * np.sqrt(1.0 + margin * margin)


@cs.implements(slope, Signed)
def _(loss, margin, label):
    return label * margin / np.sqrt(1.0 + margin * margin)


LOSSES = {
    "logistic": cs.losses.Logistic(),
    "weighted": cs.losses.Logistic(positive_weight=2.0),
    "huber": cs.losses.Huber(),
    "absolute": cs.losses.Absolute(),
}
each = pytest.mark.parametrize("name", LOSSES)


def table(kind, records=150, rank=5, columns=5, seed=0):
    """Return rows of length at most one and of the given rank, with labels that no model fits perfectly."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((records, rank)) @ np.linalg.qr(rng.standard_normal((columns, rank)))[0].T
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1))[:, np.newaxis]
    margins = x @ np.linspace(-2, 2, columns)
    if kind == "binary":
        return x, (rng.random(records) < 1 / (1 + np.exp(-margins))).astype(float)
    return x, margins + 0.3 * rng.standard_normal(records)


def problem_of(name, region=None, **sizes):
    loss = LOSSES[name]
    x, y = table("real" if name in ("huber", "absolute") else "binary", **sizes)
    return cs.Problem(x, y, loss=loss, region=region)


def minimiser(problem):
    """Return the minimiser: for the absolute loss by linear programming, otherwise the stable point."""
    if not isinstance(problem.loss, cs.losses.Absolute):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rank-deficient: not isolated
            return cs.stable_point(problem).theta
    from scipy.optimize import linprog

    n, d = problem.features.shape
    cost = np.r_[np.zeros(d), np.ones(2 * n)]
    equal = np.hstack((problem.features, -np.eye(n), np.eye(n)))
    free = [(None, None)] * d + [(0, None)] * (2 * n)
    return linprog(cost, A_eq=equal, b_eq=problem.labels, bounds=free).x[:d]


def excesses(problem, rule, steps, best, replicates, start=0.0, seed=0):
    """Return L(released) − L(best) per replicate."""
    trace = cs.run(problem, rule, steps, start=start, replicates=replicates, seed=seed, record=[steps])
    risk = cs.metrics.performative_risk
    return risk(problem, trace.output) - risk(problem, best)


def holds(values, bound):
    """Return whether a mean is below a bound by six standard errors.

    The bounds here are 12 standard errors away and more, so that a false alarm takes a mean that is off by six: less
    than once in a million for 40 runs and more (Student's t with 39 degrees: 3e-7).
    """
    return values.mean() + 6 * values.std(ddof=1) / np.sqrt(values.size) <= bound


@each
@pytest.mark.parametrize(
    ("noise_std", "steps", "factor"), [(0.0, 30, 1.0), (0.1, 50, 1.0), (0.5, 100, 0.3), (0.5, 1, 3.0)]
)
def test_theorem_3_1_holds(name, noise_std, steps, factor):
    """At the best step, and at others. The rank is 4, of 6 columns."""
    problem = problem_of(name, rank=4, columns=6)
    best = minimiser(problem)
    geometry = glm.row_space(problem, minimiser=best)
    assert geometry.dimension == 4
    step = factor * glm.best_step(geometry, noise_std, steps)
    bound = glm.excess_risk(geometry, noise_std, steps, step)
    found = excesses(problem, reference.descent(step, noise_std), steps, best, 40)
    assert holds(found, bound)
    if factor == 1.0:
        assert glm.excess_risk(geometry, noise_std, steps) == pytest.approx(bound, rel=1e-12)
        assert bound < 20 * found.mean()


REGIONS = {
    "logistic": lambda: problem_of("logistic", cs.regions.Ball(1.0)),
    "huber": lambda: problem_of("huber", cs.regions.Box(-0.4, 0.6)),
    "absolute": lambda: problem_of("absolute", cs.regions.Ball(10.0)),
    "squared": lambda: cs.Problem(*table("real"), loss=cs.losses.SquaredError(0.1), region=cs.regions.Ball(2.0)),
    "quadratic": lambda: cs.Problem([0.0] * 9 + [1.0], loss=cs.losses.Quadratic(10.0), region=cs.regions.Box(-10, 10)),
}


BOUNDED = ("huber", "absolute")  # bounded gradients without a region, as for "logistic"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.verify if name in BOUNDED else []) for name in REGIONS]
)
def test_theorem_2_7_holds_in_a_region(name):
    problem = REGIONS[name]()
    best = minimiser(problem)
    geometry = glm.ambient(problem, start=0.3, minimiser=best)
    assert geometry.dimension == problem.dimension
    assert geometry.distance == pytest.approx(np.linalg.norm(best - 0.3), rel=1e-12)
    for noise_std, steps in ((0.1, 50), (0.5, 100)):
        step = glm.best_step(geometry, noise_std, steps)
        found = excesses(problem, reference.descent(step, noise_std), steps, best, 40, start=0.3)
        assert holds(found, glm.excess_risk(geometry, noise_std, steps))


@pytest.mark.parametrize("clip", [0.1, 0.4])
@pytest.mark.parametrize("name", ["logistic", "weighted", "huber"])
def test_corollary_5_2_holds(name, clip):
    """For the clipped risk, with the clip as its Lipschitz constant; the runs clip the original gradients."""
    problem = problem_of(name, rank=4, columns=6)
    clipped = glm.clipped_problem(problem, clip)
    geometry = glm.row_space(clipped)
    assert geometry.lipschitz == clip
    best = minimiser(clipped)
    assert geometry.distance == pytest.approx(np.linalg.norm(glm.row_basis(problem.features) @ best), rel=1e-6)
    for noise_std, steps in ((0.02, 60), (0.1, 100)):
        step = glm.best_step(geometry, noise_std, steps)
        trace = cs.run(problem, reference.descent(step, noise_std, clip), steps, replicates=40, seed=0, record=[steps])
        risk = cs.metrics.performative_risk
        found = risk(clipped, trace.output) - risk(clipped, best)
        assert holds(found, glm.excess_risk(geometry, noise_std, steps))


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_eq_6_as_printed_fails_for_the_average_that_is_released(steps):
    """|θ| from 0.01 with steps of 1: θ_1 = −0.99, θ_2 = 0.01, … The proof's average has θ_0 in the place of θ_T."""
    problem = cs.Problem([1.0], [0.0], loss=cs.losses.Absolute())
    geometry = glm.row_space(problem, start=0.01, minimiser=0.0)
    found = excesses(problem, reference.descent(1.0, 0.0), steps, np.zeros(1), 1, start=0.01)[0]
    printed = 0.01**2 / (2 * steps) + 0.5
    bound = glm.excess_risk(geometry, 0.0, steps, 1.0)
    assert bound == pytest.approx(printed + 0.5 / steps)
    assert printed < found <= bound
    assert bound < 1.03 * found


@pytest.mark.parametrize("loss", ["logistic", "huber"])
def test_columns_of_zeros_cost_nothing(loss):
    """Theorem 3.1: from 10 to 10,000 columns at rank 5, with the same noise on every coordinate.

    All means are of one law. Six standard errors of a difference: a false alarm in 10⁷ (t with 78 degrees).
    """
    small = problem_of(loss)
    best = cs.stable_point(small).theta
    geometry = glm.row_space(small)
    step = glm.best_step(geometry, 0.3, 50)
    means, errors, ambient = [], [], []
    for columns in (10, 100, 1000, 10_000):
        padded = np.zeros((small.records, columns))
        padded[:, :5] = small.features
        problem = cs.Problem(padded, small.labels, loss=small.loss)
        target = np.r_[best, np.zeros(columns - 5)]
        wide = glm.row_space(problem, minimiser=target)
        assert wide == pytest.approx(geometry, rel=1e-9)
        found = excesses(problem, reference.descent(step, 0.3), 50, target, 40, seed=columns)
        assert holds(found, glm.excess_risk(wide, 0.3, 50))
        means.append(found.mean())
        errors.append(found.std(ddof=1) / np.sqrt(found.size))
        ambient.append(glm.excess_risk(glm.ambient(problem, minimiser=target), 0.3, 50))
    for mean, error in zip(means[1:], errors[1:], strict=True):
        margin = 6 * np.hypot(errors[0], error)
        assert abs(mean - means[0]) < margin < 0.6 * means[0]  # a growth by 60 % would show
    assert ambient[-1] > 15 * ambient[0]  # Theorem 2.7 sees all columns


def test_excess_risk_grows_like_the_root_of_the_rank():
    """Rank 2 to 32 at ‖θ*‖ = 1, the best step and the same noise, on a design where the bound is tight.

    One record per basis vector, loss |θ_j − 1/√r|. Descent reaches the minimum after a fraction of the run that is half the
    bound; after that it is a random walk that averages out. The bound is √((1 + r)/T), of slope 0.48 between its ends;
    the fit over 40 replicates has a standard error of 0.005, and 0.08 is sixteen of them.
    """
    ranks, steps, found, bounds = [2, 4, 8, 16, 32], 40_000, [], []
    for rank in ranks:
        best = np.full(rank, 1 / np.sqrt(rank))
        problem = cs.Problem(np.eye(rank), best, loss=cs.losses.Absolute())
        geometry = glm.row_space(problem, minimiser=best)
        assert geometry == pytest.approx((rank, 1.0, 1.0))
        step = glm.best_step(geometry, 1.0, steps)
        values = excesses(problem, reference.descent(step, 1.0), steps, best, 40)
        bounds.append(glm.excess_risk(geometry, 1.0, steps))
        assert holds(values, bounds[-1])
        assert bounds[-1] < 2.2 * values.mean()
        found.append(values.mean())
    assert np.polyfit(np.log(ranks), np.log(found), 1)[0] == pytest.approx(0.5, abs=0.08)


def test_the_row_space_is_what_linear_algebra_says():
    x, _ = table("real", rank=3, columns=7)
    basis = glm.row_basis(x)
    eigenvalues, vectors = np.linalg.eigh(x.T @ x)
    kept = vectors[:, eigenvalues > 1e-9]
    np.testing.assert_allclose(basis.T @ basis, kept @ kept.T, atol=1e-12)
    problem = problem_of("huber", rank=3, columns=7)
    theta = np.arange(7.0)
    geometry = glm.row_space(problem, start=1.0, minimiser=theta)
    projector = kept @ kept.T
    assert geometry.dimension == 3
    assert geometry.distance == pytest.approx(np.sqrt((1 - theta) @ projector @ (1 - theta)), rel=1e-10)


@each
def test_the_lipschitz_constant_holds_at_any_model_and_is_attained(name):
    problem = problem_of(name)
    longest = 0.0
    for theta in np.random.default_rng(0).standard_normal((20, 5)) * 30:
        for i in range(problem.records):
            one = problem.on(problem.features[i : i + 1], problem.labels[i : i + 1])
            longest = max(longest, np.linalg.norm(mean_gradient(one, theta, theta, 1)))
    bound = glm.data_lipschitz(problem)
    assert 0.95 * bound <= longest <= bound * (1 + 1e-12)


def test_the_printed_form_of_theorem_3_1():
    """L·‖θ*‖·√(1 + 2·rank·log(1/δ))/(εn), up to √(1 + 1/T); the certified noise is larger, and so is its bound."""
    geometry = glm.Geometry(7, 3.0, 2.0)
    epsilon, delta, records = 0.5, 1e-5, 300
    printed = 2.0 * 3.0 * np.sqrt(1 + 2 * 7 * np.log(1 / delta)) / (epsilon * records)
    paper = glm.private_excess_risk(geometry, epsilon, delta, records, how="paper")
    assert paper == pytest.approx(printed * np.sqrt(1 + 1 / (epsilon * records) ** 2), rel=1e-9)
    assert paper < glm.private_excess_risk(geometry, epsilon, delta, records) < 2 * paper


def test_private_noise_is_certified():
    noise = glm.private_noise(1.0, 0.7, 1e-6, 500, 40)
    rule = reference.descent(1.0, noise, clip=1.0)
    assert 0.98 * 0.7 <= cs.account(rule, records=500, steps=40, delta=1e-6).certified <= 0.7
    paper = glm.private_noise(1.0, 0.7, 1e-6, 500, 40, how="paper")
    assert paper == pytest.approx(np.sqrt(2 * 40 * np.log(1e6)) / (500 * 0.7), rel=1e-12)  # Theorem 2.6


@each
def test_theorem_3_2_holds(name):
    """The population is a table; 60 records are drawn from it with replacement, anew for each of 120 runs."""
    population = problem_of(name, records=500, rank=4, columns=6)
    best = minimiser(population)
    geometry = glm.row_space(population, minimiser=best)
    records, noise_std, steps = 60, 0.2, 80
    rng = np.random.default_rng(0)
    best_step = glm.best_population_step(geometry, records, noise_std, steps)
    for step in (best_step, 5 * best_step):
        found = []
        for seed in range(120):
            rows = rng.integers(population.records, size=records)
            sample = population.on(population.features[rows], population.labels[rows])
            output = cs.run(sample, reference.descent(step, noise_std), steps, seed=seed, record=[steps]).output
            found.append(cs.metrics.performative_risk(population, output[0]))
        excess = np.array(found) - cs.metrics.performative_risk(population, best)
        assert holds(excess, glm.population_risk(geometry, records, noise_std, steps, step))
    least = glm.population_risk(geometry, records, noise_std, steps)
    assert least == pytest.approx(glm.population_risk(geometry, records, noise_std, steps, best_step), rel=1e-12)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert least < glm.population_risk(geometry, records, noise_std, steps, factor * best_step)
    assert least > glm.excess_risk(geometry, noise_std, steps)


def test_theorem_3_2_with_the_printed_number_of_steps():
    """T = n²: the bound is ‖θ*‖·L·√(8/n + (1 + 1/T)·(1 + k·(σ/L)²)/n²), with k = min{rank, n}."""
    n, noise_ratio = 40, 3.0
    for rank in (5, 100):
        found = glm.population_risk(glm.Geometry(rank, 3.0, 2.0), n, 2.0 * noise_ratio, n**2)
        energy = (1 + 1 / n**2) * (1 + min(rank, n) * noise_ratio**2)
        assert found == pytest.approx(3.0 * 2.0 * np.sqrt(8 / n + energy / n**2), rel=1e-12)


@each
@pytest.mark.parametrize("steps", [1, 10, 200])
def test_lemma_a_2_holds_on_neighbouring_data(name, steps):
    """The same noise, one record replaced by one that pulls the other way."""
    problem = problem_of(name)
    bound = glm.stability(glm.data_lipschitz(problem), 0.5, steps, problem.records)
    longest = 0.0
    for record in range(0, problem.records, 25):
        features, labels = problem.features.copy(), problem.labels.copy()
        features[record] *= -1.0
        if name not in ("logistic", "weighted"):
            labels[record] = 50.0
        runs = [
            cs.run(data, reference.descent(0.5, 0.2), steps, seed=1, record=[steps]).output[0]
            for data in (problem, problem.on(features, labels))
        ]
        longest = max(longest, np.linalg.norm(runs[0] - runs[1]))
    assert 0.0 < longest <= bound


def test_lemma_a_2_is_nearly_attained():
    """One record, far to one side or the other: the averages differ by step·(T + 1); the bound is 2.2 times that."""
    runs = []
    for label in (1e6, -1e6):
        problem = cs.Problem([1.0], [label], loss=cs.losses.Absolute())
        runs.append(cs.run(problem, reference.descent(0.5, 0.2), 200, seed=1, record=[200]).output[0, 0])
    assert runs[0] - runs[1] == pytest.approx(0.5 * 201)
    assert runs[0] - runs[1] <= glm.stability(1.0, 0.5, 200, 1) <= 2.2 * (runs[0] - runs[1])


def test_lemma_a_2_is_the_recursion_of_its_proof():
    """ρ_{t+1}² = ρ_t² + 4η²L² + (4ηL/n)·ρ_t, and half of the lemma's 4Lη(√T + T/n) is enough."""
    for records in (1, 7, 1000):
        rho, mean = 0.0, 0.0
        for t in range(1, 3000):
            rho = np.sqrt(rho**2 + 4 * 0.3**2 * 2.0**2 + 4 * 0.3 * 2.0 / records * rho)
            mean += (rho - mean) / t
            assert mean <= glm.stability(2.0, 0.3, t, records) * (1 + 1e-12)


def test_a_column_in_large_units_hides_no_other():
    """Without rescaling, the second column is lost in rounding, and with it half of the distance and the rank."""
    for unit in (1.0, 1e18, 1e-18):
        x = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1e9, 0.0]]) * [unit, 1.0]
        problem = cs.Problem(x, [0.0, 3.0, 0.0, 0.0], loss=cs.losses.Absolute())
        geometry = glm.row_space(problem, minimiser=[0.0, 3.0])
        assert geometry.dimension == 2
        assert geometry.distance == pytest.approx(3.0, rel=1e-12)
    deficient = glm.row_basis(np.array([[1e18, 1.0, 2.0], [2e18, 2.0, 4.0], [0.0, 0.0, 0.0]]))
    assert deficient.shape == (1, 3)
    np.testing.assert_allclose(deficient[0] / deficient[0, 0], [1.0, 1e-18, 2e-18], rtol=1e-12)


def test_any_model_may_be_compared_with():
    """Also one that is worse than the start: the mean of θ_1, …, θ_T is compared with the start itself then."""
    rng = np.random.default_rng(0)
    worse = 0
    for _ in range(200):
        n, steps = rng.integers(1, 4), int(rng.integers(1, 6))
        problem = cs.Problem(rng.standard_normal(n) + 0.01, rng.standard_normal(n), loss=cs.losses.Absolute())
        start, other, step = rng.standard_normal(), 3 * rng.standard_normal(), 10 ** rng.uniform(-2, 1)
        risk = cs.metrics.performative_risk
        found = excesses(problem, reference.descent(step, 0.0), steps, np.array([other]), 1, start=start)[0]
        worse += risk(problem, np.array([other])) > risk(problem, np.array([start]))
        geometry = glm.row_space(problem, start=start, minimiser=other)
        assert found <= glm.excess_risk(geometry, 0.0, steps, step) * (1 + 1e-12)
    assert worse > 50


def test_without_features_nothing_is_lost():
    problem = cs.Problem(np.zeros((3, 2)), [0, 1, 1], loss=cs.losses.Logistic())
    geometry = glm.row_space(problem, start=1.0, minimiser=0.0)
    assert geometry == (0, 0.0, 0.0)
    assert glm.excess_risk(geometry, 0.3, 5) == 0.0


REFUSED = {
    "reacts": (
        lambda: glm.row_space(reference.problem(cs.losses.Logistic(), cs.responses.BestResponse(0.1))),
        "records that do not react",
    ),
    "not convex": (lambda: glm.row_space(reference.problem(cs.losses.Savage())), "problem must have a convex loss"),
    "concave for its labels": (
        lambda: glm.row_space(cs.Problem([1.0, 1.0], [-1.0, -2.0], loss=Signed()), lipschitz=2.0),
        "problem must have a convex loss",
    ),
    "penalty": (lambda: glm.row_space(reference.problem(cs.losses.Logistic(0.1))), "without penalty"),
    "not linear": (lambda: glm.row_space(reference.problem(cs.losses.Quadratic())), "loss of the margin"),
    "region": (
        lambda: glm.row_space(reference.problem(cs.losses.Logistic(), region=cs.regions.Ball(1.0))),
        "problem must have no region",
    ),
    "no bound": (
        lambda: glm.row_space(reference.problem(cs.losses.SquaredError())),
        "lipschitz must be given, or the loss be clipped",
    ),
    "no minimum": (
        lambda: glm.row_space(cs.Problem([1.0, 2.0], [1, 1], loss=cs.losses.Logistic())),
        "minimiser must be given: none was found",
    ),
    "outside": (  # clipped to 1, a run loses 4 against the model 5, and would be bounded by 0.05 at T = 10,000
        lambda: glm.ambient(cs.Problem([1.0], [5.0], loss=cs.losses.Absolute(), region=cs.regions.Ball(1.0)), 0.0, 5.0),
        "minimiser must lie in the region",
    ),
    "start outside": (
        lambda: glm.ambient(reference.problem(cs.losses.Logistic(), region=cs.regions.Ball(1.0)), 7.0, 0.0),
        "start must lie in the region",
    ),
    "no best step": (lambda: glm.best_step(glm.Geometry(0, 0.0, 0.0), 0.1, 5), "geometry must have gradients or noise"),
    "best of no steps": (lambda: glm.best_step(glm.Geometry(1, 1.0, 1.0), 0.1, 0), "steps must be a whole number"),
    "no records": (lambda: glm.stability(1.0, 0.1, 5, 0), "records must be a whole number"),
    "no noise": (lambda: glm.excess_risk(glm.Geometry(1, 1.0, 1.0), -0.1, 5), "noise_std must be a number of at least 0"),
    "no steps": (lambda: glm.excess_risk(glm.Geometry(1, 1.0, 1.0), 0.1, 0), "steps must be a whole number"),
    "no step": (lambda: glm.excess_risk(glm.Geometry(1, 1.0, 1.0), 0.1, 5, 0.0), "step must be a number above 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_condition_that_fails_is_named(case):
    attempt, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        attempt()
