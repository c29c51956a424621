"""Fixed points against closed forms, and the papers' first figures against the fixed points."""

from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize

import clipsilon as cs
import reference
from clipsilon.engine.means import mean_gradient
from clipsilon.problems.responses import respond
from clipsilon.rules.clipping import Normalise


def quadratic(p=0.1, a=10.0, b=1.0, beta=0.05, records=1000, region=None):
    """Return paper 1's quadratic problem with a fraction p of ones."""
    z = np.zeros(records)
    z[: round(p * records)] = b
    return cs.Problem(z, loss=cs.losses.Quadratic(a), response=cs.responses.LocationShift(beta), region=region)


@pytest.mark.parametrize(("a", "b", "c"), [(10.0, 1.0, 1.0), (1.0, 6.0, 2.32), (2.0, 3.0, 2.5)])
@pytest.mark.parametrize("beta", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("p", [0.1, 0.4])
def test_quadratic_closed_forms(a, b, c, beta, p):
    """Paper 1, Theorem 3.5 with the factor b that its text omits; ab ≥ c/(1−p) is the exact condition."""
    problem = quadratic(p, a, b, beta)
    assert a * b >= c / (1 - p)
    stable = -p * a * b / (1 - a * beta)
    clipped = -p * c / ((1 - p) * (1 - a * beta))
    assert cs.stable_point(problem).theta == pytest.approx(stable, abs=1e-8)
    assert cs.clipped_point(problem, c).theta == pytest.approx(clipped, abs=1e-8)
    bias = (p / (1 - a * beta)) ** 2 * (a * b - c / (1 - p)) ** 2
    assert cs.clipping_bias(problem, c) == pytest.approx(bias, abs=1e-8)


def test_the_biases_of_paper_1s_first_experiment():
    assert cs.clipping_bias(quadratic(beta=0.01), 1.0) == pytest.approx(0.975, abs=5e-4)
    assert cs.clipping_bias(quadratic(beta=0.05), 1.0) == pytest.approx(3.160, abs=5e-4)


def test_a_threshold_that_never_clips_has_no_bias():
    assert cs.clipping_bias(quadratic(), 1e3) < 1e-20


@pytest.mark.parametrize("c", [0.5, 1.0, 2.0, 3.7])
def test_paper_3s_constant_bias_example(c):
    """App. B.1: the stationary point is 0; clipping moves it to −(C'−C)/C', not to C'/(C'+C)."""
    big = int(np.ceil(c)) + 1
    samples = np.r_[np.full(big, -1.0), float(big)]
    problem = cs.Problem(np.ones((big + 1, 1)), samples, loss=cs.losses.Huber(c=big))
    assert cs.stable_point(problem).theta == pytest.approx(0.0, abs=1e-8)
    assert cs.clipped_point(problem, c).theta == pytest.approx(-(big - c) / big, abs=1e-8)


@pytest.mark.parametrize("bound", [0.24, 0.1, 0.01, 1e-3])
def test_paper_5s_theorem_d4(bound):
    problem = cs.Problem([0.5, 0.5, 1.0], [1, 1, 0], loss=cs.losses.Logistic())
    assert cs.stable_point(problem).theta == pytest.approx(0.0, abs=1e-8)
    assert cs.clipped_point(problem, bound).theta == pytest.approx(2 * np.log(1 / bound - 1), abs=1e-8)


def test_a_region_stops_the_point_at_its_boundary():
    problem = quadratic(region=cs.regions.Box(-0.5, 3))
    point = cs.stable_point(problem)
    assert point.theta == pytest.approx(-0.5, abs=1e-12)
    assert point.converged
    x, y = reference.data()
    inside = cs.Problem(x, y, loss=cs.losses.Logistic(0.01), region=cs.regions.Ball(0.3))
    theta = cs.stable_point(inside).theta
    within = {"type": "ineq", "fun": lambda t: 0.09 - t @ t}

    def risk(t):
        return np.mean(np.logaddexp(0, x @ t) - y * (x @ t)) + 0.005 * t @ t

    free = minimize(risk, np.zeros(4), method="SLSQP", constraints=within, options={"ftol": 1e-14}).x
    np.testing.assert_allclose(theta, free, atol=1e-5)


def test_a_reacting_population_in_many_dimensions():
    problem = reference.problem(cs.losses.Logistic(0.05, 2.0), cs.responses.BestResponse(0.5), records=400, features=30)
    point = cs.stable_point(problem)
    assert point.converged
    assert np.linalg.norm(mean_gradient(problem, point.theta, point.theta, 1)) < 1e-10
    deployed = problem.on(problem.features, problem.labels)
    # Definition 2.1: no other model is better on the data that this one causes.
    for other in point.theta + 0.1 * np.random.default_rng(0).standard_normal((20, 30)):
        assert cs.metrics.decoupled_risk(deployed, other, point.theta) > cs.metrics.performative_risk(
            problem, point.theta
        )


def test_automatic_clipping_has_a_point_of_its_own():
    problem = cs.Problem([-1.0, 0.0, 0.0, 5.0, 7.0], loss=cs.losses.Quadratic(-1.0))
    # Σ sign(θ − z) = 0 at the median; the field jumps there, so a smaller clip shows the same limit.
    assert cs.clipped_point(problem, 1e-3).theta == pytest.approx(0.0, abs=2e-3)
    with pytest.warns(UserWarning, match="No clipped point was found"):
        cs.clipped_point(problem, Normalise(1.0), start=3.0)


def test_the_message_states_where_theory_guarantees_nothing():
    fine = cs.stable_point(quadratic(beta=0.05))
    assert fine.contraction == pytest.approx(0.5)
    assert "β ≥ μ/L" not in fine.message
    beyond = cs.stable_point(quadratic(beta=0.15))
    assert beyond.theta == pytest.approx(-0.1 * 10 / (1 - 1.5), abs=1e-8)
    assert "β ≥ μ/L (βL/μ = 1.5" in beyond.message
    with pytest.warns(UserWarning, match="No stable point was found"):
        none = cs.stable_point(quadratic(beta=0.1))
    assert not none.converged


def test_performative_optimum():
    problem = quadratic()
    assert cs.optimal_point(problem).theta == pytest.approx(-0.1 * 10 / 0.5, abs=1e-4)
    x, y = reference.data("real")
    shifted = cs.Problem(x, y, loss=cs.losses.SquaredError(0.1), response=cs.responses.LocationShift(0.2))
    best, stable = cs.optimal_point(shifted), cs.stable_point(shifted)
    risk = [float(cs.metrics.performative_risk(shifted, point.theta)) for point in (best, stable)]
    assert risk[0] < risk[1] - 1e-4  # stable is not optimal
    for nudge in 0.05 * np.random.default_rng(0).standard_normal((30, 4)):
        assert cs.metrics.performative_risk(shifted, best.theta + nudge) > risk[0]
    inside = cs.Problem(x, y, loss=cs.losses.SquaredError(0.1), region=cs.regions.Ball(0.2))
    assert np.linalg.norm(cs.optimal_point(inside).theta) == pytest.approx(0.2, abs=1e-6)


def test_retraining_converges_to_the_stable_point_at_its_rate():
    problem = quadratic()
    path = cs.repeated_minimization(problem, rounds=30, start=4.0)
    assert path.shape == (31, 1)
    # θ_{k+1} = −a(b·p̄ − βθ_k): the distance shrinks by aβ each round.
    distance = np.abs(path[:, 0] - cs.stable_point(problem).theta)
    np.testing.assert_allclose(distance[1:10] / distance[:9], 0.5, rtol=1e-6)
    gradient = cs.repeated_gradient(problem, step=0.5, rounds=100, start=4.0)
    assert gradient[-1] == pytest.approx(path[-1], abs=1e-6)


@pytest.mark.parametrize("exponent", [2, 5])
def test_badly_scaled_columns(exponent):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 4)) * 10.0 ** np.linspace(-exponent, exponent, 4)
    y = rng.standard_normal(200)
    exact = np.linalg.lstsq(x, y, rcond=None)[0]
    point = cs.stable_point(cs.Problem(x, y, loss=cs.losses.SquaredError()))
    assert point.converged
    np.testing.assert_allclose(point.theta, exact, rtol=1e-8)


def test_a_field_that_decays_at_infinity_has_no_point():
    x, _ = reference.data()
    problem = cs.Problem(x, (x @ np.ones(4) > 0).astype(float), loss=cs.losses.Logistic())
    with pytest.warns(UserWarning, match="No stable point was found"):
        assert not cs.stable_point(problem).converged


@pytest.mark.parametrize("strength", [1.1, 1.7, 2.0, 4.16, 6.0])
def test_beyond_the_threshold_the_point_is_where_the_flow_ends(strength):
    """aβ > 1 in a box: the interior zero repels, and algorithms end in the corner that the flow leads to."""
    problem = quadratic(beta=strength / 10, region=cs.regions.Box(-10, 10))
    end = cs.repeated_gradient(problem, step=0.1, rounds=2000)[-1]
    point = cs.stable_point(problem)
    assert point.theta == pytest.approx(end, abs=1e-8)
    assert point.attracts


def test_the_message_states_that_a_point_repels():
    point = cs.stable_point(quadratic(beta=0.15))
    assert point.converged
    assert not point.attracts
    assert "it repels" in point.message
    with pytest.warns(UserWarning, match="it repels") as caught:
        cs.clipping_bias(quadratic(beta=0.15), 100.0)
    for warning, what in zip(caught, ("stable", "clipped"), strict=True):
        assert f"depends on a {what} point" in str(warning.message)


def test_the_message_states_that_a_point_is_not_isolated():
    problem = quadratic(p=0.5)  # clipped gradients cancel on a whole interval
    point = cs.clipped_point(problem, 1.0)
    assert point.converged
    assert not point.isolated
    assert "not isolated" in point.message


class Jitter(NamedTuple):
    """A random response: a shift with mean −βθ."""

    beta: float
    spread: float

    random = True


@cs.implements(respond, Jitter)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] = features[j] - response.beta * deployed[j] + response.spread * rng.standard_normal()
    return label


def test_a_random_response_is_averaged_over_the_stated_draws():
    z = np.r_[np.zeros(900), np.ones(100)]
    problem = cs.Problem(z, loss=cs.losses.Quadratic(10.0), response=Jitter(0.05, 0.3))
    point = cs.stable_point(problem, draws=400)
    assert point.draws == 400
    assert "averaged over 400 draws" in point.message
    assert point.converged
    # The mean of 400,000 draws has deviation 0.3/632; θ moves a/(1−aβ) = 20 times as much. Six deviations.
    assert point.theta == pytest.approx(-2.0, abs=6 * 20 * 0.3 / np.sqrt(400_000))
    assert cs.stable_point(problem, draws=400).theta == point.theta


def first_figure(beta, rule, steps, replicates):
    """Return the gaps to the stable point in a run of paper 1's first experiment, the trace, and the bias."""
    m = 100_000
    problem, same = (quadratic(beta=beta, records=k, region=cs.regions.Box(-10, 10)) for k in (m, 1000))
    std = np.sqrt(100_000 * np.log(m)) / (m * 0.1)  # paper 1, eq. 14: c = 1, ε = 0.1, δ = 1/m, T = 10⁵
    step = cs.schedules.InverseTime(10, 100)
    rules = {"PCSGD": cs.PCSGD(step, 1.0, std), "DiceSGD": cs.DiceSGD(step, 1.0, 1.0, np.sqrt(96) * std)}
    record = np.unique(np.geomspace(1, steps, 400).astype(int))
    trace = cs.run(problem, rules[rule], steps, 5.0, replicates=replicates, seed=0, record=record)
    # A thousand records in the same proportions have the same points, which are found a hundred times as fast.
    return trace.gap(cs.stable_point(same).theta).mean(axis=0), trace, cs.clipping_bias(same, 1.0)


def last_decade_slope(gap, iterations):
    last = iterations >= iterations[-1] / 10
    return np.polyfit(np.log(iterations[last]), np.log(gap[last]), 1)[0]


@pytest.mark.parametrize("beta", [pytest.param(0.01, marks=pytest.mark.verify), 0.05])
def test_paper_1s_first_figure(beta):
    """With T = 10⁶ and 20 replicates, PCSGD ends at the exact bias and DiceSGD far below it, with a bounded ‖e‖."""
    gap, _, bias = first_figure(beta, "PCSGD", 1_000_000, 20)
    assert gap[-1] == pytest.approx(bias, rel=0.03)
    gap, trace, _ = first_figure(beta, "DiceSGD", 1_000_000, 20)
    assert gap[-1] < 1e-3
    # One residual is at most about 10; an error that was never fed back would reach 10⁵ or more.
    assert trace.error_norm().max() < 300


@pytest.mark.parametrize("beta", [pytest.param(0.01, marks=pytest.mark.verify), 0.05])
def test_dice_converges_at_rate_one_over_t(beta):
    """Fitted over [10⁴, 10⁵]. The slope has a standard deviation of 0.11 with 20 replicates, and of 0.03 with 300."""
    gap, trace, _ = first_figure(beta, "DiceSGD", 100_000, 300)
    assert last_decade_slope(gap, trace.iterations) == pytest.approx(-1.0, abs=0.15)


@pytest.mark.verify
@pytest.mark.parametrize("beta", [0.01, 0.05])
def test_dice_converges_at_rate_one_over_t_up_to_a_million_steps(beta):
    gap, trace, _ = first_figure(beta, "DiceSGD", 1_000_000, 400)
    assert last_decade_slope(gap, trace.iterations) == pytest.approx(-1.0, abs=0.15)
    assert trace.error_norm().max() < 300


class Contagion(NamedTuple):
    """A bistable reaction: every record moves towards where the deployed model has the sign of its group."""

    strength: float
    offset: float


@cs.implements(respond, Contagion)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] = features[j] - response.strength * np.tanh(deployed[j] - response.offset)
    return label


def bistable(strength=3.0, offset=0.0):
    """Return a problem whose retraining map is θ ↦ strength·tanh(θ − offset): loss (θ + z)²/2 at a mean z̄ of 0."""
    z = np.array([-1.0, 1.0])
    return cs.Problem(z, loss=cs.losses.Quadratic(1.0), response=Contagion(strength, offset))


def upper_fixed_point(strength, offset, start):
    """Iterate θ = strength·tanh(θ − offset), which contracts towards the outer points."""
    theta = start
    for _ in range(200):
        theta = strength * np.tanh(theta - offset)
    return theta


@pytest.mark.parametrize(("offset", "start"), [(0.0, 1e-9), (0.3, 0.0), (0.3, 4.0), (-0.3, 0.0), (-0.3, -4.0)])
def test_of_several_points_retraining_and_the_search_find_the_same(offset, start):
    problem = bistable(offset=offset)
    point = cs.stable_point(problem, start=start)
    assert point.converged
    assert point.attracts
    assert point.theta == pytest.approx(upper_fixed_point(3.0, offset, start), abs=1e-9)
    assert cs.clipped_point(problem, 1e3, start=start).theta == pytest.approx(point.theta[0], abs=1e-9)


def test_a_point_that_attracts_is_preferred_to_one_that_repels():
    """Retraining from 0 stays at 0, which repels, so only the search on its two sides leads away."""
    point = cs.stable_point(bistable())
    assert abs(point.theta[0]) == pytest.approx(upper_fixed_point(3.0, 0.0, 1.0), abs=1e-9)
    assert point.attracts
    assert point.points_seen == 2
    assert "2 different points were seen" in point.message
    single = cs.stable_point(bistable(strength=0.5))
    assert single.theta == pytest.approx(0.0, abs=1e-9)
    assert single.points_seen == 1
    assert "different points" not in single.message


def test_a_saddle_is_left_in_the_plane():
    """One coordinate contracts and the other is bistable: Newton steps from (2, 0) end at the saddle at 0."""
    z = np.array([[-1.0, -1.0], [1.0, 1.0]])
    problem = cs.Problem(z, loss=cs.losses.Quadratic(1.0), response=Contagion(2.0, 0.0))
    point = cs.stable_point(problem, start=[2.0, 0.0])
    assert point.attracts
    np.testing.assert_allclose(np.abs(point.theta), upper_fixed_point(2.0, 0.0, 1.0), atol=1e-9)


@pytest.mark.verify
@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
def test_the_stable_point_of_perdomos_credit_map_is_where_retraining_ends(strength):
    """Its 8,357 defaults and first 10,000 others, columns scaled on all rows, no intercept, l2 = 1000/n."""
    data = cs.datasets.credit().standardised()
    rows = np.r_[np.flatnonzero(data.labels == 1), np.flatnonzero(data.labels == 0)[:10_000]]
    if not data.real:
        pytest.skip("the credit data could not be downloaded")
    assert rows.size == 18_357
    problem = cs.Problem(data.features[rows], data.labels[rows], loss=cs.losses.Logistic(1000 / rows.size),
                         response=cs.responses.LinearShift(strength, [0, 5, 7]))  # fmt: skip
    path = cs.repeated_minimization(problem, rounds=90)  # θ_1 is the empirical risk minimiser
    assert np.linalg.norm(path[-1] - path[-2]) < 1e-9
    point = cs.stable_point(problem)
    assert np.linalg.norm(point.theta - path[-1]) < 1e-7
    assert point.attracts
    assert point.points_seen == (2 if strength == 2.0 else 1)
