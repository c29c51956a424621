"""Reactions with memory and several learners: points, and rates of retraining that retraining has."""

import numpy as np
import pytest

import clipsilon as cs
import reference

X = np.random.default_rng(0).standard_normal((200, 2))
Y = X @ [1.0, -0.5] + 0.3 * np.random.default_rng(1).standard_normal(200)


def quadratic(beta, speed=1.0):
    response = cs.responses.Slow(cs.responses.LocationShift(beta), speed)
    return cs.Problem([0.0, 1.0], loss=cs.losses.Quadratic(10.0), response=response)


def test_memory_makes_retraining_converge_where_it_would_not():
    """θ' = −a·z̄ + a·β·φ, φ' = (1 − η)φ + ηθ with a·β = −1.5: eigenvalues 0 and 1 − η + η·a·β."""
    for speed, rate in ((1.0, 1.5), (0.5, 0.25), (0.9, 1.25)):
        assert cs.retraining_rate(quadratic(-0.15, speed)) == pytest.approx(rate, abs=1e-6)
    path = cs.repeated_minimization(quadratic(-0.15, 0.5), 30)[:, 0]
    np.testing.assert_allclose((path[2:6] + 2) / (path[1:5] + 2), -0.25, atol=1e-9)  # θ_PS = −5/2.5
    assert abs(cs.repeated_minimization(quadratic(-0.15, 0.9), 30)[-1, 0]) > 100
    np.testing.assert_allclose(cs.joint_retraining(quadratic(-0.15, 0.5), 5)[:, 0], path[:6], atol=1e-9)


def test_the_rate_of_gradient_steps():
    """With a·β = 0.5 and γ = 0.3: θ' = θ − γ(θ + a·z), so the factor is 1 − 0.3·0.5."""
    assert cs.retraining_rate(quadratic(0.05), step=0.3) == pytest.approx(0.85, abs=1e-6)
    path = cs.repeated_gradient(quadratic(0.05, 0.5), 0.3, 60)[:, 0] + 10.0  # θ_PS = −5/0.5
    rate = cs.retraining_rate(quadratic(0.05, 0.5), step=0.3)
    assert path[-1] / path[-2] == pytest.approx(rate, abs=1e-4)


def test_a_run_with_memory_equals_the_reference():
    for loss, response in ((cs.losses.Logistic(0.1), cs.responses.Slow(cs.responses.LocationShift(0.3), 0.4)),):
        problem = reference.problem(loss, response)
        for every in (1, 3):
            rule = cs.PCSGD(cs.schedules.Constant(0.1), clip=0.8, noise_std=0.2, deploy_every=every)
            trace = cs.run(problem, rule, steps=20, seed=3, start=0.5)
            thetas = reference.run(problem, rule, 20, 0.5, 3)[0]
            np.testing.assert_allclose(trace.theta[0][-1], thetas[-1], rtol=1e-10, atol=1e-12)


def test_memory_per_record_is_memory_of_one_model():
    """z_t = (1 − η)z_{t−1} + η·respond(z̄, θ_t), record by record, is what the run's deployed model gives."""
    models = np.random.default_rng(2).standard_normal((6, 2))
    inner, speed = cs.responses.LinearShift(0.7, [1]), 0.3
    problem = cs.Problem(X, Y, loss=cs.losses.SquaredError(), response=cs.responses.Slow(inner, speed))
    from clipsilon.analysis.fixed_points import adapt
    from clipsilon.engine.means import moved_features

    still = cs.Problem(X, Y, loss=problem.loss, response=inner)
    records, deployed = moved_features(still, models[0]), models[0]
    for theta in models[1:]:
        records = (1 - speed) * records + speed * moved_features(still, theta)
        deployed = adapt(problem, deployed, theta)
    np.testing.assert_allclose(moved_features(problem, deployed), records, atol=1e-12)


@pytest.mark.parametrize("response", [cs.responses.BestResponse(0.2), cs.responses.MatrixShift(np.eye(2), 1.0)])
def test_reactions_that_are_not_linear_have_no_memory_here(response):
    with pytest.raises(ValueError, match=r"^response must be linear in θ .* others would need a memory per record\.$"):
        cs.responses.Slow(response, 0.5)


def test_several_learners_find_a_joint_point_at_the_stated_rate():
    responses = cs.responses.LocationShift(0.2), cs.responses.LinearShift(0.3, [1])
    problems = [
        cs.Problem(X, Y + k, loss=cs.losses.SquaredError(0.1), response=response)
        for k, response in enumerate(responses)
    ]
    found = cs.joint_point(problems)
    assert found.converged
    assert found.attracts
    moved = X - 0.2 * found.thetas[0] - 0.3 * found.thetas[1] * [0, 1]
    for k, theta in enumerate(found.thetas):  # ridge regression on the records that both have moved
        expected = np.linalg.solve(moved.T @ moved / 200 + 0.1 * np.eye(2), moved.T @ (Y + k) / 200)
        np.testing.assert_allclose(theta, expected, atol=1e-9)
    path = cs.joint_retraining(problems, 12) - np.concatenate(found.thetas)
    lengths = np.linalg.norm(path, axis=1)
    assert lengths[-1] / lengths[-2] == pytest.approx(cs.retraining_rate(problems), abs=1e-3)
    alone = cs.joint_point(problems[0]).thetas[0]
    np.testing.assert_allclose(alone, cs.stable_point(problems[0]).theta, atol=1e-9)


def test_learners_must_share_the_records():
    first, second = (cs.Problem(x, Y, loss=cs.losses.SquaredError()) for x in (X, X + 1))
    with pytest.raises(ValueError, match=r"^problems must be about the same records, got different features\.$"):
        cs.joint_point([first, second])
    with pytest.raises(ValueError, match=r"^problems must hold at least one problem, got none\.$"):
        cs.joint_point([])
