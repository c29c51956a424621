"""What privacy costs: the limits against closed forms, brute force and a rule that attains one."""

import math
from itertools import product

import numpy as np
import pytest

import clipsilon as cs
import reference
from clipsilon.privacy.accounting import gaussian as gdp
from clipsilon.theory.limits import Neighbour, far_neighbour, unbiased_limit


def quadratic(records=1000, beta=0.05):
    z = np.zeros(records)
    z[: records // 10] = 1.0
    return cs.Problem(z, loss=cs.losses.Quadratic(10.0), response=cs.responses.LocationShift(beta))


def stated(noise_std, clip=9.0, records=1000, steps=1, adjacency="zero-out"):
    rule = cs.DPGD(cs.schedules.Constant(2.0), clip, noise_std=noise_std)
    return rule, cs.account(rule, records, steps, 1e-5, adjacency=adjacency)


@pytest.mark.parametrize(("adjacency", "moved"), [("zero-out", 0.9 / 999), ("replace-one", 1 / 1000)])
def test_the_neighbour_of_the_quadratic(adjacency, moved):
    """θ_PS = −a·p/(1 − aβ), p the fraction of ones: the farthest neighbour has one of them less."""
    neighbour = far_neighbour(quadratic(), adjacency)
    assert neighbour.moved == pytest.approx(20 * moved, rel=1e-6)


def test_the_neighbour_is_the_farthest_of_all_on_a_small_table():
    problem = reference.problem(cs.losses.Logistic(0.1), cs.responses.BestResponse(0.3), records=40)
    stable = cs.stable_point(problem).theta
    rows = np.arange(40)
    moved = [
        np.linalg.norm(
            cs.stable_point(problem.on(problem.features[rows != i], problem.labels[rows != i])).theta - stable
        )
        for i in rows
    ]
    neighbour = far_neighbour(problem, "zero-out")
    assert neighbour.record == int(np.argmax(moved))
    assert neighbour.moved == pytest.approx(max(moved), rel=1e-6)
    assert far_neighbour(problem).moved >= 0.9 * neighbour.moved


def test_the_limit_of_a_gaussian_rule_has_a_closed_form():
    _, statement = stated(0.1)
    mu = 9 / (1000 * 0.1)
    limit = unbiased_limit(quadratic(), statement)
    square = (20 * 0.9 / 999) ** 2
    assert limit.gap == pytest.approx(square / math.expm1(mu**2), rel=1e-6)
    assert limit.any_rule < square / 4
    assert limit.average_gap >= limit.gap
    assert limit.any_rule < limit.average_gap


def test_an_unbiased_gaussian_rule_attains_the_limit():
    """One full step of size 1/(1 − aβ) from θ_PS(D) ends at θ_PS plus noise; at small μ this is what the limit allows.

    The mean of 4,000 squares of a normal number has a relative deviation of √(2/4000) = 0.022; six deviations have a
    false-alarm probability of 2·10⁻⁹.
    """
    problem = quadratic()
    rule, statement = stated(0.1)
    stable = cs.stable_point(problem).theta
    trace = cs.run(problem, rule, 1, stable, replicates=4000, seed=1)
    gap = float(trace.gap(stable)[:, -1].mean())
    limit = unbiased_limit(problem, statement).gap
    mu = 9 / (1000 * 0.1)
    exact = limit * math.expm1(mu**2) / mu**2 * 0.999**2  # m − 1 against m
    assert exact == pytest.approx(limit, rel=0.01)
    assert gap == pytest.approx(exact, rel=6 * math.sqrt(2 / 4000))


@pytest.mark.parametrize("odds", [0.2, 1.0, 3.0])
def test_randomised_response_meets_all_three_bounds(odds):
    """Every unbiased estimate of one bit from its randomised response has the variance that the limit states."""
    truth = 1 / (1 + math.exp(-odds))
    tell = np.array([truth, 1 - truth]), np.array([1 - truth, truth])
    unbiased = np.linalg.solve(np.stack(tell), [0.0, 1.0])  # T(0), T(1) with mean 0 under D and 1 under D'
    gaps = [float(p @ (unbiased - target) ** 2) for p, target in zip(tell, (0.0, 1.0), strict=True)]
    s = math.tanh(odds / 2) ** 2
    assert gaps[0] == pytest.approx(1 / (4 * math.sinh(odds / 2) ** 2))  # ‖Δ‖²/χ²
    assert sum(gaps) / 2 == pytest.approx((1 / s - 1) / 4)
    grid = np.linspace(0, 1, 201)
    least = min(
        sum(float(p @ (np.array(guess) - target) ** 2) for p, target in zip(tell, (0.0, 1.0), strict=True)) / 2
        for guess in product(grid, grid)
    )
    assert least == pytest.approx((1 - s) / 4, abs=1e-4)
    assert least >= (1 - s) / 4 - 1e-12


def test_a_certificate_without_a_bound_on_chi_square_leaves_the_average():
    problem = quadratic()
    rule = cs.DiceSGD(cs.schedules.Constant(0.1), 1.0, 1.0, 1.0, batch=4)
    statement = cs.account(rule, 1000, 5, 1e-5, adjacency="zero-out")
    neighbour = Neighbour(0, None, 2.0)
    limit = unbiased_limit(problem, statement, neighbour)
    assert limit.gap == pytest.approx(4.0 / limit.chi_square)
    nothing = cs.account(cs.SGD(cs.schedules.Constant(0.1)), 1000, 5, 1e-5, adjacency="zero-out")
    open_to_all = unbiased_limit(problem, nothing, neighbour)
    assert open_to_all.chi_square == np.inf
    assert open_to_all[:3] == (0.0, 0.0, 0.0)


def test_a_sampled_rule_has_a_higher_limit_than_the_gaussian_through_its_point():
    rule = cs.DPSGD(cs.schedules.Constant(0.1), 1.0, 0.05, batch=50)
    statement = cs.account(rule, 1000, 200, 1e-5, adjacency="zero-out")
    neighbour = Neighbour(0, None, 1.0)
    through = gdp.largest_mu(statement.certified, 1e-5)
    assert unbiased_limit(quadratic(), statement, neighbour).gap > 1 / math.expm1(through**2)


def test_what_is_refused():
    _, statement = stated(0.1, records=999)
    with pytest.raises(ValueError, match="statement must be about 1000 records, got one about 999"):
        unbiased_limit(quadratic(), statement)
    with pytest.raises(ValueError, match="adjacency must be one of"):
        far_neighbour(quadratic(), "other")
    with (
        pytest.warns(UserWarning, match="No stable point"),
        pytest.raises(ValueError, match="must have a stable point"),
    ):
        far_neighbour(quadratic(beta=0.1))


@pytest.mark.verify
def test_the_limits_on_credit_data():
    """One record moves θ_PS by 0.0426 squared, which full batches at ε = 0.5, …, 8 and δ = 10⁻⁵ cannot follow."""
    from clipsilon.reproduce.problems import credit_data, credit_problem

    if not credit_data().real:
        pytest.skip("the credit data could not be downloaded")
    square = far_neighbour(credit_problem(0.1), "zero-out").moved ** 2
    assert square == pytest.approx(0.04257, rel=1e-3)
    limits = [square / math.expm1(gdp.largest_mu(epsilon, 1e-5) ** 2) for epsilon in (0.5, 1, 2, 4, 8)]
    np.testing.assert_allclose(limits, [2.084, 0.5714, 0.1488, 0.03147, 0.002829], rtol=2e-3)
