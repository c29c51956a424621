"""Correlated noise in the engine: its law, its memory, and what the record's contributions are hidden by."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clipsilon as cs
from clipsilon.engine.grid import check_rounding, scaling, step_grid
from clipsilon.rules import correlation
from clipsilon.rules.correlation import coefficients, rounding, square_root
from clipsilon.rules.noise import correlate

PAIRS = np.array([[0.3, 0.2], [0.9, 0.25], [0.99, 0.1]])
STEP = cs.schedules.Constant(1.0)


def still(steps, replicates=1, sampling="full", buffers=PAIRS, **more):
    """A run whose gradients are zero at every θ: −θ_t is the sum of the noise."""
    problem = cs.Problem(np.zeros((20, 2)), np.zeros(20), loss=cs.losses.Logistic())
    rule = cs.CorrelatedSGD(STEP, 1.0, 1.0, sampling=sampling, buffers=buffers)
    return cs.run(problem, rule, steps, seed=5, replicates=replicates, record=range(steps + 1), **more)


def test_the_noise_of_a_run_is_the_inverse_of_independent_noise():
    """C·x is independent: means over 2,000 runs × 2 coordinates of products, each N(0, 1/4000) up to the diagonal.

    A false alarm has a probability below 36·2·Φ(−6.5) < 1e-8; M·Mᵀ for Mᵀ·M would show off the diagonal.
    """
    trace = still(8, replicates=2000)
    noise = -np.diff(trace.theta, axis=1)
    c = coefficients(PAIRS, 8)
    toeplitz = np.array([[c[i - j] if i >= j else 0.0 for j in range(8)] for i in range(8)])
    white = np.einsum("ts,rsj->rtj", toeplitz, noise)
    found = np.einsum("rtj,rsj->ts", white, white) / 4000
    limit = 6.5 * np.sqrt((1 + np.eye(8)) / 4000)
    assert (np.abs(found - np.eye(8)) < limit).all()
    plain = np.einsum("rtj,rsj->ts", noise, noise) / 4000
    assert plain[0, 1] < -limit[0, 1]  # a step takes back a part of the noise of the one before


def test_memory_survives_chunks_and_checkpoints(tmp_path):
    """Buffers that were set to zero at each call of the compiled loop would leave the noise independent."""
    whole = still(60).theta
    path = tmp_path / "run.ckpt"
    pieces = still(60, checkpoint=path).theta
    np.testing.assert_array_equal(whole, pieces)


def test_a_resumed_run_is_the_same_run(tmp_path, monkeypatch):
    import clipsilon.engine.replicate as replicate

    monkeypatch.setattr(replicate, "CHUNK_SECONDS", 0.0)  # one step at a time
    expected = still(40).theta
    monkeypatch.undo()
    np.testing.assert_array_equal(still(40).theta, expected)


def replay(contributions, outputs, buffers):
    """The whole numbers q_t − r_t that the noise is added to, if earlier steps released these outputs."""
    noise = cs.noise.Correlated(1.0, buffers)
    state, means = np.zeros((noise.memory, contributions.shape[1])), []
    for q, out in zip(contributions, outputs, strict=True):
        before = state.copy()
        state[-1] = 0.0
        correlate(noise, state)
        taken = -state[-1]
        means.append(q - taken)
        state[:] = before
        state[-1] = out - q + taken  # the fresh noise that leads to this output
        correlate(noise, state)
        np.testing.assert_array_equal(state[-1], out - q)
    return np.array(means)


@given(st.data(), st.sampled_from(["ordinary", "cut off"]))
@settings(max_examples=60, deadline=None)
def test_no_history_moves_the_means_by_more_than_the_certificate_says(data, kind):
    """In the integers of the machine, on adversarial histories: outputs and other records' sums are anything."""
    steps, d = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    apart, bound = data.draw(st.integers(1, 6)), 2.0**28
    reach = 2.0**34 if kind == "ordinary" else 2.0**44
    others = np.rint(rng.uniform(-reach, reach, (steps, d)))
    spread = reach * rng.choice([1, 2.0**6] if kind == "cut off" else [1])
    outputs = others + np.rint(rng.standard_normal((steps, d)) * spread)
    own = np.zeros((steps, d))
    places = range(data.draw(st.integers(0, apart - 1)), steps, apart)
    for t in places:
        direction = rng.standard_normal(d)
        own[t] = np.trunc(bound * direction / np.linalg.norm(direction))
    buffers = PAIRS if data.draw(st.booleans()) else square_root(1000)
    moved = replay(others + own, outputs, buffers) - replay(others, outputs, buffers)
    c = coefficients(buffers, steps)
    most = np.array([sum(c[t - s] * np.abs(own[s]) for s in range(t + 1)) for t in range(steps)])
    assert (np.abs(moved) <= most + rounding(buffers, steps)).all()
    total = correlation.shift_norm(buffers, steps, max(len(places), 1), apart) * bound
    assert np.linalg.norm(moved) <= total + rounding(buffers, steps) * np.sqrt(steps * d)
    if kind == "ordinary" and len(places) == 1 and steps > 3:
        exact = np.array([sum(c[t - s] * own[s] for s in range(t + 1)) for t in range(steps)])
        np.testing.assert_allclose(moved, exact, atol=rounding(buffers, steps))


def test_the_noise_of_the_engine_covers_its_rounding():
    problem = cs.Problem(np.zeros((1000, 10)), np.zeros(1000), loss=cs.losses.Logistic())
    for noise, most in ((5.0, 1e-6), (1e7, 1.0)):
        rule = cs.CorrelatedSGD(STEP, 1.0, noise)
        assert 0 < step_grid(scaling(problem, rule, 1000), 1.0, noise, 10).growth < most
        check_rounding(problem, rule, 1000)


def test_the_last_half_is_released():
    trace = still(9)
    np.testing.assert_allclose(trace.output[0], trace.theta[0, 5:].mean(axis=0), rtol=1e-12)
    assert still(1).output[0] == pytest.approx(still(1).theta[0, 1])


def test_cyclic_batches_come_back_in_the_same_order():
    problem = cs.Problem(np.arange(1.0, 8.0)[:, None], loss=cs.losses.Quadratic(1.0))
    rule = cs.SGD(cs.schedules.Constant(1e-9), batch=3, sampling="cyclic")
    trace = cs.run(problem, rule, 9, seed=0, record=range(10))
    moves = -np.diff(trace.theta[0, :, 0])
    np.testing.assert_allclose(moves[:3], moves[3:6], rtol=1e-6)
    np.testing.assert_allclose(moves[:3], moves[6:9], rtol=1e-6)
    assert len({round(move * 1e12) for move in moves[:3]}) == 3
