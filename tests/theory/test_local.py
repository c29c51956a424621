"""Paper 4's bounds against exact moments, sums by brute force, and runs; and where they fail as printed."""

import re

import numpy as np
import pytest
from scipy.integrate import quad

import clipsilon as cs
from clipsilon.rules.clipping import Unclipped
from clipsilon.rules.noise import Gaussian
from clipsilon.rules.outputs import Average
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import SinglePass, Uniform
from clipsilon.rules.schedules import Power, size
from clipsilon.theory import local
from clipsilon.theory.local import LocalConstants

ALPHAS = [0.0, 0.25, 0.4, 0.5, 0.6, 2 / 3, 0.8, 0.95]
MARGIN = 6.0  # standard errors; see `exceeds`


def constants(**changes):
    base = LocalConstants(2.0, budget=1.5, dimension=3, start=1.7, smoothness=1.2, strong_convexity=0.3)
    return base._replace(**changes)


def psi(power, t):
    return float(local.power_integral(power, t))


# --- ψ ---


@pytest.mark.parametrize("power", [-3.0, -0.5, -1e-9, 0.0, 1e-9, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("t", [0.2, 1.0, 1.5, 40.0])
def test_power_integral_is_an_integral(power, t):
    assert local.power_integral(power, t) == pytest.approx(
        quad(lambda s: s ** (power - 1), 1, t)[0], rel=1e-6, abs=1e-12
    )


def test_power_integral_takes_arrays_and_bounds_sums():
    n = np.arange(1, 200)
    for power in (-1.0, 0.0, 0.4, 1.0):
        sums = np.cumsum(n ** (power - 1.0))
        assert (sums <= 1 + local.power_integral(power, n) + 1e-12).all()
        assert (sums >= local.power_integral(power, n + 1) - 1e-12).all()
    assert local.power_integral([[-1.0], [0.0]], [1.0, 2.0, 3.0]).shape == (2, 3)


# --- the bounds against what they bound ---


def moments(curvature, variance, step, start, users):
    """Return E u_k² and E ū_k² of θ_k − θ* exactly, on F = ½λ(θ − θ*)² with gradient errors of the given variance."""
    square, average, cross, total = start, [], 0.0, 0.0
    last = []
    for k in range(1, users + 1):
        eta = size(step, k)
        square = (1 - eta * curvature) ** 2 * square + eta**2 * variance
        cross *= 1 - eta * curvature  # E of (u_1 + … + u_{k−1})·u_k
        total += 2 * cross + square
        cross += square
        last.append(square)
        average.append(total / k**2)
    return np.array(last), np.array(average)


def quadratic_case(curvatures, spread, budgets, step, users, starts):
    """Return exact moments on a diagonal quadratic F, and constants whose C_0² is the largest mean square gradient."""
    curvatures, starts = np.array(curvatures), np.array(starts)
    d, noise = curvatures.size, 0.0
    for _ in range(12):  # C_0 sets the noise, which sets how far θ goes, which sets C_0
        exact = [moments(c, spread**2 + noise, step, s, users) for c, s in zip(curvatures, starts, strict=True)]
        reach = np.array([np.append(s, last) for (last, _), s in zip(exact, starts, strict=True)])
        bound = np.sqrt((curvatures[:, None] ** 2 * reach).sum(axis=0).max() + d * spread**2)
        before, noise = noise, 4 * bound**2 * np.mean(1 / np.square(budgets))
    assert noise == pytest.approx(before, rel=1e-6)
    case = LocalConstants(bound * (1 + 1e-6), budgets, d, starts.sum(), curvatures.max(), curvatures.min())
    last, average = np.sum([e[0] for e in exact], axis=0), np.sum([e[1] for e in exact], axis=0)
    loss = 0.5 * sum(c * e[0] for c, e in zip(curvatures, exact, strict=True))
    average_loss = 0.5 * sum(c * e[1] for c, e in zip(curvatures, exact, strict=True))
    return case, last, average, loss, average_loss


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("budgets", [20.0, [5.0, 10.0, 40.0]])
def test_all_bounds_hold_for_exact_moments(alpha, budgets):
    """Quadratic F with two curvatures, without simulation. The step is so small that the loop for C_0 converges."""
    step, users = Power(0.1, alpha), 500
    case, last, average, loss, average_loss = quadratic_case([1.0, 0.4], 1.0, budgets, step, users, [1.0, 0.2])
    n = np.arange(1, users + 1)
    assert (last <= local.last_distance(case, step, n)).all()
    assert (average <= local.average_distance(case, step, n)).all()
    assert (loss <= local.last_loss(case, step, n)).all()
    assert (average_loss <= local.average_loss(case, step, n)).all()
    limit = local.limit_variance(case, np.diag([1.0, 0.4]), np.eye(2))
    sharp = local.average_distance(case, step, n, limit)
    assert (average <= sharp).all()
    assert (sharp <= local.average_distance(case, step, n)).all()


def test_the_average_attains_its_limit():
    """n·E‖θ̄_n − θ*‖² tends to the limit variance, and so does the bound: no constant is lost."""
    step, users = Power(0.5, 0.6), 50_000
    case = LocalConstants(3.0, 1.5, 1, 0.5, 1.0, 0.8)
    variance = 1.0 + 4 * 3.0**2 / 1.5**2
    _, average = moments(0.8, variance, step, 0.5, users)
    limit = local.limit_variance(case, [[0.8]], [[1.0]])
    assert limit == pytest.approx(variance / 0.8**2)
    assert users * average[-1] == pytest.approx(limit, rel=0.02)
    many = np.array([users, 64 * users])
    assert (many * local.average_distance(case, step, many, limit) / limit < [3.0, 1.7]).all()


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("product", [0.5, 0.1, 0.003])
@pytest.mark.parametrize("power", [2, 3, 4])
def test_discounted_sums_are_bounded(alpha, product, power):
    case, step = constants(strong_convexity=2 * product), Power(0.5, alpha)
    total, n = 0.0, np.arange(1, 2001)
    bounds = local._discounted(case, step, n, power)
    for k in n:
        eta = size(step, k)
        total = (1 - 2 * case.strong_convexity * eta) * total + eta**power
        assert total <= bounds[k - 1] * (1 + 1e-12)


def test_fourth_moments_are_bounded():
    """Compare with exact fourth moments on a quadratic in one dimension whose gradient error is ±1."""
    step, bound, budget = Power(0.2, 0.5), 3.0, 2.0
    case = LocalConstants(bound, budget, 1, 0.49, 1.0, 1.0)
    noise = (2 * bound / budget) ** 2
    second, fourth = 0.49, 0.49**2
    error2, error4 = 1 + noise, 1 + 6 * noise + 3 * noise**2
    bounds = local._fourth_moment(case, step, np.arange(1, 1001))
    for k in range(1, 1001):
        eta = size(step, k)
        keep = 1 - eta
        fourth = keep**4 * fourth + 6 * keep**2 * eta**2 * second * error2 + eta**4 * error4
        second = keep**2 * second + eta**2 * error2
        assert second + 1 <= bound**2
        assert fourth <= bounds[k - 1]


def formula_3(case, step, n):
    """Theorem 3 in plain numbers: m = 0.3, M = 1.2."""
    rate, alpha = 0.3 * step.eta, step.alpha
    halves = (2 / n) ** alpha / (2 * rate) + (1 + psi(1 - 2 * alpha, max(n / 2, 1))) * np.exp(-rate * n ** (1 - alpha))
    noise = step.eta**2 * min(1 + psi(1 - 2 * alpha, n), halves)
    return np.exp(-2 * rate * psi(1 - alpha, n + 1)) * 1.7 + case.energy * noise


@pytest.mark.parametrize("alpha", [0.25, 0.5])
def test_distances_are_their_formulas(alpha):
    case, step, n = constants(hessian_smoothness=0.004), Power(1.5, alpha), 4000
    squares = [formula_3(case, step, k) for k in range(1, n + 2)]
    assert list(local.last_distance(case, step, range(1, n + 2))) == pytest.approx(squares)
    roots, inverse = [None, *np.sqrt(squares)], [None, *(1 / size(step, k) for k in range(1, n + 2))]
    parts = roots[1] * inverse[2] + roots[n + 1] * inverse[n + 1]
    parts += sum(roots[k] * (inverse[k + 1] - inverse[k]) for k in range(2, n + 1))
    parts += 0.002 * sum(np.sqrt(local._fourth_moment(case, step, np.array(k))) for k in range(1, n + 1))
    rough, limit = 1.2 * np.sqrt(sum(squares[:n])), 1e-3
    plain, sharp = np.sqrt(case.energy / n) / 0.3 + parts / (0.3 * n), np.sqrt(limit / n) + (parts + rough) / (0.3 * n)
    assert local.average_distance(case, step, n) == pytest.approx(plain**2)
    assert local.average_distance(case, step, n, limit) == pytest.approx(sharp**2)
    assert local.average_distance(case, step, n, limit=1e9) == pytest.approx(plain**2)
    assert local.average_distance(case, step, 1) == pytest.approx(squares[0])  # the mean of one


@pytest.mark.parametrize("alpha", ALPHAS)
def test_average_loss_is_its_sum(alpha):
    """The proof's sums are {D_n/η_{n+1} + σ²·Σ_{k=2}^{n+1} η_k}/(2n); replacing them by integrals costs little."""
    case, step, n = constants(), Power(0.4, alpha), 300
    sizes = np.array([size(step, k) for k in range(1, n + 2)])
    exact = ((1.7 + case.energy * (sizes[:n] ** 2).sum()) / sizes[n] + case.energy * sizes[1:].sum()) / (2 * n)
    assert exact <= local.average_loss(case, step, n) * (1 + 1e-12)
    assert local.average_loss(case, step, n) <= 1.3 * exact


def test_last_loss_is_the_best_window():
    case, step = constants(), Power(0.3, 0.6)
    sizes = np.array([size(step, k) for k in range(1, 31)])
    distance = 1.7 + case.energy * (sizes**2).sum()
    windows = [
        distance / (2 * sizes[-w:].sum()) + 0.5 * 1.2 * case.energy * (sizes[-w:] ** 2).sum() for w in range(1, 31)
    ]
    assert local.last_loss(case, step, 30) == pytest.approx(min(windows))


def test_budgets_enter_through_the_mean_of_their_inverse_squares():
    mixed, one = constants(budget=[1.0, 3.0]), constants(budget=np.sqrt(1 / np.mean([1.0, 1 / 9])))
    assert mixed.energy == pytest.approx(one.energy)
    assert mixed.energy == pytest.approx(4.0 * (1 + 4 * 3 * (1 + 1 / 9) / 2))
    step = Power(0.3, 0.6)
    for bound in (local.last_distance, local.last_loss, local.average_loss):
        assert bound(mixed, step, 50) == pytest.approx(bound(one, step, 50))
    assert local.last_distance(constants(budget=1.0), step, 50) > local.last_distance(mixed, step, 50)


def test_bounds_take_one_number_or_many():
    step = Power(0.3, 0.6)
    for bound in (local.last_distance, local.average_distance, local.last_loss, local.average_loss):
        many = bound(constants(hessian_smoothness=0.3), step, [1, 10, 100])
        assert many.shape == (3,)
        assert [float(bound(constants(hessian_smoothness=0.3), step, n)) for n in (1, 10, 100)] == pytest.approx(
            list(many)
        )


# --- Table 1 ---


def slope(bound, case, step, n, **extra):
    values = bound(case, step, [n, 2 * n], **extra)
    return -np.log2(values[1] / values[0])


CLOSED = 10**17  # for bounds in closed form; the others are sums
SUMMED = 2**20


@pytest.mark.parametrize("alpha", [0.2, 0.3, 0.4, 0.6, 0.7, 0.8])
def test_rates_are_those_of_the_bounds(alpha):
    last, _, last_loss, average_loss = local.rates(alpha)
    case, step = constants(start=0.01), Power(0.5, alpha)
    assert slope(local.last_distance, case, step, CLOSED) == pytest.approx(last.exponent, abs=0.01)
    assert slope(local.average_loss, case, step, CLOSED) == pytest.approx(average_loss.exponent, abs=0.01)
    if alpha > 1 / 3:
        assert slope(local.last_loss, case, step, SUMMED) == pytest.approx(last_loss.exponent, abs=0.06)
    else:
        assert last_loss.exponent == 0.0
        assert slope(local.last_loss, case, step, SUMMED) < 0


@pytest.mark.parametrize("alpha", [0.2, 0.3, 0.4, 0.6])
def test_rates_of_averages_are_those_of_the_bound(alpha):
    """A bias of order n^(−2α) appears for α < 1/2 if the Hessian of F varies, and not at all if F is quadratic."""
    curved, step = (
        constants(start=0.01, strong_convexity=1.0, hessian_smoothness=0.2 if alpha < 0.5 else 0.01),
        Power(0.5, alpha),
    )
    flat = curved._replace(hessian_smoothness=0.0)
    assert slope(local.average_distance, curved, step, SUMMED) == pytest.approx(local.rates(alpha)[1].exponent, abs=0.1)
    assert slope(local.average_distance, flat, step, SUMMED) == pytest.approx(
        local.rates(alpha, quadratic=True)[1].exponent, abs=0.1
    )


def test_rates_of_averages_come_slowly_for_fast_steps():
    case, step = constants(start=0.01, strong_convexity=1.0, hessian_smoothness=0.01), Power(0.5, 0.7)
    slopes = [slope(local.average_distance, case, step, n) for n in (2**16, 2**20)]
    assert local.rates(0.7)[1].exponent == 1.0
    assert 1.0 < slopes[1] < slopes[0] < 1.3


def test_rates_at_the_border_have_logarithms():
    case, step = constants(), Power(0.5, 0.5)
    for rate, bound, n in zip(
        local.rates(0.5)[2:], (local.last_loss, local.average_loss), (SUMMED, CLOSED), strict=True
    ):
        factor = (np.log(2 * n) / np.log(n)) ** rate.logarithms
        assert slope(bound, case, step, n) == pytest.approx(rate.exponent - np.log2(factor), abs=0.01)
        assert rate.logarithms > 0


@pytest.mark.parametrize(
    ("alpha", "printed"),
    [(0.4, (0.4, 1.0, 0.1, 0.4)), (0.6, (0.6, 0.8, 0.3, 0.4)), (0.8, (0.8, 0.4, 0.2, 0.2))],
)
def test_printed_rates_are_table_1s(alpha, printed):
    assert [rate.printed for rate in local.rates(alpha)] == pytest.approx(printed)


# --- runs ---


def huber():
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(30), rng.uniform(-1, 1, 30)])
    y = x @ [0.5, -0.7] + rng.standard_normal(30) ** 3
    return cs.Problem(x, y, loss=cs.losses.Huber(c=1.0, l2=0.5)), 0.5, None


def logistic():
    rng = np.random.default_rng(6)
    x = rng.uniform(-1, 1, (40, 5))
    y = (x.sum(axis=1) + rng.standard_normal(40) > 0.5).astype(float)
    third = np.mean((x**2).sum(axis=1) ** 1.5) / (6 * np.sqrt(3))  # |φ'''| ≤ 1/(6√3)
    return cs.Problem(x, y, loss=cs.losses.Logistic(l2=0.5)), 0.5, third


def squared_error():
    rng = np.random.default_rng(7)
    x = rng.uniform(0.5, 1.5, (25, 1))
    y = 0.4 * x[:, 0] + rng.uniform(-1, 1, 25)
    return cs.Problem(x, y, loss=cs.losses.SquaredError()), np.mean(x**2), 0.0


STRONGLY_CONVEX = {"huber": huber, "logistic": logistic, "squared error": squared_error}


def exceeds(values, bounds):
    """Return whether a mean over replicates is above its bound by more than chance allows.

    The mean of 150 replicates, each the sum of many small steps, is close to normal: six standard errors have a
    chance of 1e-9, and there are at most 15 of them a test.
    """
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return (mean - MARGIN * error > bounds).any()


def replicates(problem, step, bound, budget, start, users=1000, count=150):
    """Return all models of `count` single passes, each over fresh, independent draws of the problem's records.

    So the law Π of a user is the uniform one on the problem's records, and F is the problem's risk.
    """
    rule = Rule("LDP-ASGD", step, Unclipped(), SinglePass(1), Gaussian(2 * bound / budget), output=Average())
    rng = np.random.default_rng(8)
    traces = []
    for k in range(count):
        drawn = rng.integers(0, problem.records, users)
        fresh = problem.on(problem.features[drawn], problem.labels[drawn])
        traces.append(cs.run(fresh, rule, steps=users, start=start, seed=k, record=np.arange(users + 1), n_jobs=1))
    models = np.concatenate([trace.theta for trace in traces])
    averages = np.cumsum(models[:, 1:], axis=1) / np.arange(1, users + 1)[:, np.newaxis]
    assert np.allclose(averages[:, -1], np.concatenate([trace.output for trace in traces]))
    return models, averages


def within(problem, minimum, radius):
    return problem.constants(np.linalg.norm(minimum) + radius).gradient_bound


AT = np.unique(np.geomspace(1, 1000, 15).round().astype(int))


@pytest.mark.parametrize("name", STRONGLY_CONVEX)
@pytest.mark.parametrize("alpha", [pytest.param(0.25, marks=pytest.mark.verify), 0.5, 0.75])
def test_distances_hold_over_runs(name, alpha):
    """Theorems 3 and 4, with C_0 over a ball that no run leaves."""
    problem, least, third = STRONGLY_CONVEX[name]()
    minimum, radius, step, budget = cs.stable_point(problem).theta, 2.5, Power(0.1, alpha), 4.0
    bound = within(problem, minimum, radius)
    models, averages = replicates(problem, step, bound, budget, minimum + 0.5)
    assert ((models - minimum) ** 2).sum(axis=2).max() < radius**2
    case = LocalConstants(
        bound,
        budget,
        problem.dimension,
        0.25 * problem.dimension,
        problem.constants(9.0).smoothness,
        least,
        third or 0.0,
    )
    last = ((models[:, AT] - minimum) ** 2).sum(axis=2)
    assert not exceeds(last, local.last_distance(case, step, AT))
    assert local.last_distance(case, step, 1000) < 80 * last[:, -1].mean()
    if third is not None:  # the Hessian of Huber's loss jumps
        average = ((averages[:, AT - 1] - minimum) ** 2).sum(axis=2)
        assert not exceeds(average, local.average_distance(case, step, AT))
        assert local.average_distance(case, step, 1000) < 50 * average[:, -1].mean()


def flat_huber():
    problem, _, _ = huber()
    return cs.Problem(problem.features, problem.labels, loss=cs.losses.Huber(c=1.0)), 1.0


def flat_logistic():
    problem, _, _ = logistic()
    return cs.Problem(problem.features, problem.labels, loss=cs.losses.Logistic()), 1.0


def single_logistic():
    x = np.array([-2.0, -1.0, 0.5, 1.0, 3.0])
    return cs.Problem(x, [0, 1, 1, 0, 1], loss=cs.losses.Logistic(positive_weight=2.0)), 2.0


CONVEX = {"huber": flat_huber, "logistic": flat_logistic, "one feature": single_logistic}


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("alpha", [0.4, 0.5, 0.75])
def test_losses_hold_over_runs(name, alpha):
    """Theorems 5 and 6. These gradients are bounded everywhere, by the largest slope times the longest record."""
    problem, steepest = CONVEX[name]()
    lengths = np.sqrt((problem.features**2).sum(axis=1))
    minimum, step, budget, bound = cs.stable_point(problem).theta, Power(0.1, alpha), 2.0, steepest * lengths.max()
    models, averages = replicates(problem, step, bound, budget, minimum + 1.0)
    case = LocalConstants(bound, budget, problem.dimension, problem.dimension, problem.constants(1.0).smoothness)
    risk = cs.metrics.performative_risk
    last, average = (risk(problem, chosen) - risk(problem, minimum) for chosen in (models[:, AT], averages[:, AT - 1]))
    assert not exceeds(last, local.last_loss(case, step, AT))
    assert not exceeds(average, local.average_loss(case, step, AT))
    assert local.average_loss(case, step, 1000) < 150 * average[:, -1].mean()
    assert local.last_loss(case, step, 1000) < 80 * last[:, -1].mean()


def test_projected_runs_keep_to_theorems_3_and_6():
    """On a region both conditions of Theorem 3 can hold: a bounded gradient, and strong convexity."""
    free, least, _ = squared_error()
    problem = cs.Problem(free.features, free.labels, loss=free.loss, region=cs.regions.Box(-0.2, 1.0))
    known, minimum, step, budget = problem.constants(), cs.stable_point(problem).theta, Power(0.3, 0.5), 1.0
    models, averages = replicates(problem, step, known.gradient_bound, budget, np.array([1.0]))
    assert np.mean((models == 1.0) | (models == -0.2)) > 0.05  # runs reach the borders
    case = LocalConstants(known.gradient_bound, budget, 1, float((1.0 - minimum[0]) ** 2), known.smoothness, least)
    assert not exceeds(((models[:, AT] - minimum) ** 2).sum(axis=2), local.last_distance(case, step, AT))
    risk = cs.metrics.performative_risk
    assert not exceeds(risk(problem, averages[:, AT - 1]) - risk(problem, minimum), local.average_loss(case, step, AT))


# --- as printed ---


def test_theorem_3_as_printed_fails_without_much_noise():
    """F = ½θ², records ±1, no privacy noise to speak of. |θ_k| > 0.02 has a chance below 1e-50, so C_0 = 1.02."""
    step, n = Power(0.001, 0.99), 20_000
    exact, _ = moments(1.0, 1.0, step, 0.0, n)
    printed = 1.02**2 * (step.eta / n**0.99 + step.eta**2 * psi(1 - 1.98, n) * np.exp(-step.eta * n**0.01 / 2))
    assert exact[-1] > 1.3 * printed
    assert exact[-1] < local.last_distance(LocalConstants(1.02, 1e9, 1, 0.0, 1.0, 1.0), step, n)


def test_theorem_5_as_printed_fails():
    """Huber's loss in one dimension, far out and almost without noise: F falls by C_0 times the distance travelled."""
    c, far, step, n = 1e6, 1e9, Power(1e-4, 0.75), 16
    theta = far - c * sum(size(step, k) for k in range(1, n + 1))
    loss = c * theta - 0.5 * c**2
    start = far**2 + c**2 * step.eta**2 * psi(-0.5, n)
    printed = 2 * np.sqrt(start) * (1 + 4 * c * step.eta**1.5) / step.eta / psi(0.25, n)
    assert loss > 30 * printed
    assert loss < local.last_loss(LocalConstants(c, 1e9, 1, far**2, 1.0), step, n)


def test_theorem_6_as_printed_fails_at_the_first_user():
    case, step = LocalConstants(2.0, 1.0, 1, 0.0, 1.0, 1.0), Power(0.1, 0.5)
    variance = 1.0 + 4 * 2.0**2
    _, average = moments(1.0, variance, step, 0.0, 1)
    assert psi(1 - 2 * step.alpha, 1) == psi(1 - step.alpha, 1) == 0.0  # so is what is printed
    assert 0.0 < 0.5 * average[0] < local.average_loss(case, step, 1)


def test_theorem_4_as_printed_leaves_out_the_noise():
    """For flat losses its terms of order 1/n, tr(H⁻¹SH⁻¹) + σ̃²/m + σ̃²/(m(1 − 2α)), are below what θ̄_n tends to."""
    alpha, m, bound, budget, d = 0.25, 1e-3, 1.0, 0.5, 4
    case = LocalConstants(bound, budget, d, 0.0, m, m)
    covariance = np.eye(d) * bound**2 / d
    printed = bound**2 / m**2 + bound**2 * (1 + 64 * d / budget**2) / m * (1 + 1 / (1 - 2 * alpha))
    assert local.limit_variance(case, m * np.eye(d), covariance) > 10 * printed


@pytest.mark.verify
def test_averages_are_slower_than_printed_below_one_half():
    """α = 1/4: n·E‖θ̄_n − θ*‖² should stay bounded by Table 1. It grows like √n, as the bias of a curved F does.

    400 runs a point. Their means have relative standard errors of 0.06 and 0.03, and their ratio, near 3.5, is six of
    its own above 2: a chance of 1e-9.
    """
    problem = cs.Problem(np.ones(10), np.r_[np.ones(9), 0.0], loss=cs.losses.Logistic(l2=0.02))
    minimum = cs.stable_point(problem).theta
    scaled = []
    for n in (4_000, 64_000):
        rule = Rule("LDP-ASGD", Power(0.5, 0.25), Unclipped(), Uniform(1), Gaussian(3.0), output=Average())
        output = cs.run(problem, rule, steps=n, start=minimum, replicates=400, seed=9, record=2, n_jobs=1).output
        scaled.append(n * ((output - minimum) ** 2).sum(axis=1))
    assert scaled[1].mean() > 2 * scaled[0].mean()


# --- wrong input ---


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: constants(budget=0.0), "budget must be a number above 0, or one per user"),
        (lambda: constants(budget=[1.0, np.inf]), "budget must be a number above 0"),
        (lambda: constants(dimension=0), "dimension must be a whole number"),
        (lambda: local.power_integral(1.0, 0.0), "t must be above 0"),
        (lambda: local.last_distance(constants(), Power(2.0, 0.5), 10), "eta ≤ 1/(2m) = 1.67 for this bound, got 2"),
        (
            lambda: local.average_distance(constants(strong_convexity=0.0), Power(0.1, 0.5), 10),
            "strong_convexity must be above 0",
        ),
        (lambda: local.last_loss(constants(), Power(0.1, 1.0), 10), "step must have an alpha below 1"),
        (
            lambda: local.average_loss(constants(), Power(0.1, 0.5), 0),
            "users must be whole numbers of at least 1, got 0",
        ),
        (lambda: local.average_loss(constants(), Power(0.1, 0.5), 2.5), "users must be whole numbers of at least 1"),
        (lambda: local.rates(1.0), "alpha must be a number in"),
        (
            lambda: local.limit_variance(constants(), np.eye(2), np.eye(3)),
            "hessian must be a finite table of shape (3, 3)",
        ),
        (
            lambda: local.limit_variance(constants(), np.eye(3), 1.0),
            "covariance must be a finite table of shape (3, 3)",
        ),
        (lambda: local.limit_variance(constants(), np.zeros((3, 3)), np.eye(3)), "hessian must be positive definite"),
        (
            lambda: local.average_distance(constants(), Power(0.1, 0.5), 10, limit=-1.0),
            "limit must be a number of at least 0",
        ),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(call, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_only_power_steps_are_taken():
    with pytest.raises(TypeError, match="step must be a Power"):
        local.last_loss(constants(), cs.schedules.Constant(0.1), 10)
