"""The matrices of correlated noise: coefficients, inverses, sensitivities and fits, against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import clipsilon as cs
from clipsilon.rules import correlation
from clipsilon.rules.correlation import (
    average_response,
    coefficients,
    fit,
    inverse_modes,
    output_norm,
    rounding,
    shift_norm,
    square_root,
)
from clipsilon.rules.schedules import sizes

PAIRS = np.array([[0.3, 0.2], [0.9, 0.25], [0.99, 0.1]])


def matrix(buffers, steps):
    c = coefficients(buffers, steps)
    return np.array([[c[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])


def test_coefficients_are_those_of_the_buffers():
    found = coefficients(PAIRS, 6)
    expected = [1.0] + [sum(w * d ** (k - 1) for d, w in PAIRS) for k in range(1, 6)]
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert coefficients(PAIRS, 1).tolist() == [1.0]


def test_the_inverse_is_the_inverse():
    poles, weights = inverse_modes(PAIRS)
    inverse = [1.0] + [-float(np.sum(weights * poles ** (k - 1))) for k in range(1, 40)]
    product = matrix(PAIRS, 40) @ inverse
    np.testing.assert_allclose(product, np.eye(40)[0], atol=1e-14)


@pytest.mark.parametrize(
    ("steps", "times", "apart"), [(1, 1, 1), (6, 1, 1), (6, 2, 3), (6, 6, 1), (7, 3, 2), (5, 2, 4)]
)
def test_no_pattern_of_participation_moves_more(steps, times, apart):
    """Brute force over all sets of at most K steps that are at least b apart, with equal and opposite directions."""
    c, largest = matrix(PAIRS, steps), 0.0
    for size in range(1, times + 1):
        for places in itertools.combinations(range(steps), size):
            if all(later - sooner >= apart for sooner, later in itertools.pairwise(places)):
                for signs in itertools.product((-1, 1), repeat=size):
                    largest = max(largest, float(np.linalg.norm(c[:, places] @ np.array(signs))))
    assert largest <= shift_norm(PAIRS, steps, times, apart) <= largest * (1 + 1e-9)


def test_directions_in_several_dimensions_move_no_more():
    rng = np.random.default_rng(0)
    c = matrix(PAIRS, 6)
    for _ in range(200):
        directions = rng.standard_normal((6, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        assert np.linalg.norm(c @ directions) <= shift_norm(PAIRS, 6, 6, 1)


def test_the_length_of_a_run_counts_and_not_that_of_the_coefficients():
    """A known fault: the sensitivity of one participation in place of that of K; c cut off where it becomes small."""
    one, four = shift_norm(PAIRS, 400, 1, 100), shift_norm(PAIRS, 400, 4, 100)
    assert four > np.sqrt(4) * one  # the participations overlap
    identity = np.array([[0.5, 1e-12]])
    assert shift_norm(identity, 400, 4, 100) == pytest.approx(2.0, rel=1e-9)  # √K, not 1


@given(
    st.lists(st.tuples(st.floats(0.01, 0.999), st.floats(0.01, 1.0)), min_size=1, max_size=4),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 10),
)
@settings(max_examples=60, deadline=None)
def test_sensitivities_are_sums_of_columns(pairs, steps, times, apart):
    buffers = np.array(pairs)
    buffers[:, 1] /= max(1.0, 1.01 * buffers[:, 1].sum())
    c = coefficients(buffers, steps)
    total = np.zeros(steps)
    for j in range(times):
        if j * apart < steps:
            total[j * apart :] += c[: steps - j * apart]
    assert shift_norm(buffers, steps, times, apart) == pytest.approx(np.linalg.norm(total), rel=1e-9)


@pytest.mark.parametrize("steps", [10, 1000, 10**5])
def test_square_roots_are_close(steps):
    """C·C is close to the matrix of prefix sums, all of whose entries are 1, in the norm that privacy depends on."""
    buffers = square_root(steps)
    exact = np.cumprod(np.concatenate([[1.0], (2 * np.arange(1, steps) - 1) / (2 * np.arange(1, steps))]))
    assert shift_norm(buffers, steps) == pytest.approx(np.linalg.norm(exact), rel=2e-2 if steps == 10 else 2e-3)
    assert buffers[:, 1].sum() <= 1


def test_a_fit_has_less_noise_than_the_square_root_and_independent_noise():
    response = average_response(cs.schedules.Constant(0.05), 0.2, 400, 200)
    found, root = (fit(response), square_root(400))
    costs = [shift_norm(pairs, 400) * output_norm(pairs, response) for pairs in (found, root)]
    assert costs[0] < 0.9 * costs[1] < 0.9 * 0.5 * np.linalg.norm(response)
    assert costs[0] >= np.abs(response).max()  # no matrix has less
    assert ((found > 0) & (found < 1)).all()
    assert found[:, 1].sum() < 1


@pytest.mark.parametrize(("times", "apart"), [(1, 1), (5, 50), (250, 1)])
def test_a_fit_is_as_good_as_one_by_the_norms_themselves(times, apart):
    """`fit` uses tables and thinned sums; with `shift_norm` and `output_norm` in their place it would be no better."""
    response = average_response(cs.schedules.InverseTime(3.0, 40.0), 0.5, 250, 125)

    def cost(place):
        buffers = correlation._from_place(place)
        return 2 * np.log(shift_norm(buffers, 250, times, apart) * output_norm(buffers, response))

    found = fit(response, times, apart)
    direct = minimize(cost, correlation._to_place(square_root(250, 4)), method="L-BFGS-B").fun
    assert 2 * np.log(shift_norm(found, 250, times, apart) * output_norm(found, response)) <= direct + 0.01  # 0.5 %


def test_the_parts_of_a_fit_are_the_norms():
    responses = np.stack([average_response(cs.schedules.Constant(0.01), mu, 4000, 2000) for mu in (0.1, 1.0, 30.0)])
    energy = correlation._output_energy(responses)
    numbers, lengths = correlation._thinned(4000)
    assert lengths.sum() == 4000
    for buffers in (PAIRS, square_root(4000), np.array([[0.02, 0.9]])):
        alone = [output_norm(buffers, response) for response in responses]
        assert output_norm(buffers, responses) == pytest.approx(np.linalg.norm(alone), rel=1e-12)
        assert np.sqrt(energy(buffers)) == pytest.approx(np.linalg.norm(alone), rel=1e-4)
        thinned = np.sqrt(lengths @ correlation._energies(buffers, 4000, 4000, 1, numbers))
        assert thinned == pytest.approx(shift_norm(buffers, 4000, 4000, 1), rel=1e-4)


def test_fits_for_long_runs():
    """A hundred thousand steps, where one pass over them per trial would take minutes."""
    response = average_response(cs.schedules.Constant(1e-4), 1.0, 10**5, 10**5 // 2)
    found, root = fit(response), square_root(10**5)
    costs = [shift_norm(pairs, 10**5) * output_norm(pairs, response) for pairs in (found, root)]
    assert costs[0] < 0.6 * costs[1]  # measured: 0.575


@pytest.mark.parametrize(
    "step",
    [cs.schedules.Power(0.5, 0.6), cs.schedules.Piecewise([1, 4, 9], [0.3, 0.2, 1.0])],
    ids=lambda s: type(s).__name__,
)
def test_sizes_are_those_of_every_step(step):
    expected = [cs.schedules.size(step, t) for t in range(1, 13)]
    np.testing.assert_allclose(sizes(step, 12), expected, rtol=1e-15)  # powers of arrays may differ in the last bit


def test_the_response_of_an_average_is_a_derivative():
    step, curvature, steps, begin = cs.schedules.InverseTime(2, 30), 0.7, 12, 6
    response = average_response(step, curvature, steps, begin)
    for t in range(steps):
        noise, theta, total = np.eye(steps)[t], 0.0, 0.0
        for k in range(steps):
            gamma = cs.schedules.size(step, k + 1)
            theta = (1 - gamma * curvature) * theta + gamma * noise[k]
            total += theta * (k >= begin)
        assert response[t] == pytest.approx(total / (steps - begin), rel=1e-12)


def test_output_noise_is_that_of_the_inverse_matrix():
    response = np.random.default_rng(1).standard_normal(30)
    expected = np.linalg.norm(np.linalg.inv(matrix(PAIRS, 30)).T @ response)
    assert output_norm(PAIRS, response) == pytest.approx(expected, rel=1e-12)


def test_rounding_is_about_one_unit():
    assert 1.0 < rounding(PAIRS, 1000) < 1.1
    assert rounding(square_root(10**6, 6), 10**6) < 10
    assert rounding(np.array([[1 - 2**-53, 0.5]]), 100) < 1.2  # no more than 100 steps add up


@pytest.mark.parametrize("decay", [5e-324, 1e-300, 1e-17, 1e-16, 0.49999, 0.5, 1 - 1e-15])
def test_decays_at_both_ends_are_counted(decay):
    """Where 1 − θ rounds to 1, log θ must not be infinite."""
    buffers = np.array([[decay, 0.5]])
    total = np.cumsum(np.concatenate([[1.0], 0.5 * decay ** np.arange(9)]))
    assert shift_norm(buffers, 10, 10, 1) == pytest.approx(np.linalg.norm(total), rel=1e-9)
    assert np.isfinite(coefficients(buffers, 10)).all()


@pytest.mark.parametrize(
    "value", [[[0.5, 0.6], [0.9, 0.5]], [[1.0, 0.5]], [[0.5, 0.0]], [[0.5, -0.1]], [0.5, 0.5], [[0.5]], [[np.nan, 0.1]]]
)
def test_pairs_that_are_no_buffers_are_refused(value):
    with pytest.raises(ValueError, match="buffers must be pairs of a decay and a weight between 0 and 1"):
        cs.noise.Correlated(1.0, value)
