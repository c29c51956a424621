"""The closed form against fifty digits, and its inverses against the closed form."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipsilon.privacy.accounting import gaussian


def exact_log_delta(mu, epsilon):
    """Return δ by its definition, with so many digits that neither cancellation nor overflow matters."""
    with mpmath.workdps(80 + int(epsilon / 2)):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        first = mpmath.erfc((epsilon / mu - mu / 2) / mpmath.sqrt(2)) / 2
        second = mpmath.erfc((epsilon / mu + mu / 2) / mpmath.sqrt(2)) / 2
        return float(mpmath.log(first - mpmath.exp(epsilon) * second))


# ε/μ − μ/2 from far below to far above: δ from almost 1 to 1e-300.
POINTS = [
    (mu, epsilon)
    for epsilon in (0.0, 1e-4, 1e-2, 1.0, 30.0, 1e3)
    for t in (-30.0, -2.0, -1e-3, 0.0, 0.3, 3.0, 10.0, 36.5)
    if (mu := math.sqrt(t * t + 2 * epsilon) - t) > 0
]


@pytest.mark.parametrize(("mu", "epsilon"), POINTS)
def test_delta_is_exact(mu, epsilon):
    assert float(gaussian.log_delta(mu, epsilon)) == pytest.approx(exact_log_delta(mu, epsilon), abs=1e-10, rel=1e-12)


@pytest.mark.parametrize("t", [-3.0, 0.0, 4.0, 20.0])
def test_delta_is_exact_at_an_epsilon_of_1e5(t):
    mu = math.sqrt(t * t + 2e5) - t
    u = mpmath.mpf(1e5) / mpmath.mpf(mu) - mpmath.mpf(mu) / 2
    ratio = lambda v: mpmath.erfc(v / mpmath.sqrt(2)) * mpmath.exp(v * v / 2)  # noqa: E731
    with mpmath.workdps(50):
        exact = mpmath.exp(-u * u / 2) * (ratio(u) - ratio(u + mu)) / 2
    assert gaussian.delta(mu, 1e5) == pytest.approx(float(exact), rel=1e-9)


def test_delta_is_continuous_where_the_formula_changes():
    for epsilon in (0.0, 0.1, 3.0, 15.0):
        below, above = gaussian.log_delta(np.array([0.5 - 1e-13, 0.5]), epsilon)
        assert below == pytest.approx(above, rel=1e-9)


def test_delta_vanishes_without_complaint():
    for mu in (1e-12, 1e-3, 0.49):
        assert gaussian.delta(mu, 1e3) == 0.0
        assert -math.inf < gaussian.log_delta(mu, 1e3) < -1e5
    assert gaussian.log_delta(1e-3, 1.0) == pytest.approx(exact_log_delta(1e-3, 1.0), rel=1e-9)


def test_delta_broadcasts():
    losses = np.array([0.0, 1.0, 5.0])
    curve = gaussian.delta(2.0, losses)
    assert curve.shape == (3,)
    assert [gaussian.delta(2.0, float(loss)) for loss in losses] == curve.tolist()
    assert gaussian.delta(np.array([[0.1], [3.0]]), losses).shape == (2, 3)


def test_nothing_and_everything_revealed():
    assert gaussian.delta(0.0, 0.0) == 0.0
    assert gaussian.delta(math.inf, 1e5) == 1.0
    assert gaussian.epsilon(0.0, 1e-300) == 0.0
    assert gaussian.epsilon(math.inf, 0.5) == math.inf
    assert gaussian.epsilon(1e200, 0.5) == math.inf  # ε is about μ²/2


def test_two_known_values():
    assert gaussian.epsilon(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-4)  # noise multiplier 2, replace-one
    assert gaussian.delta(1.0, 0.0) == pytest.approx(math.erf(1 / math.sqrt(8)), rel=1e-14)


@given(mu=st.floats(-6, 4).map(lambda x: 10**x), log_delta=st.floats(-690, -0.01))
def test_epsilon_inverts_delta(mu, log_delta):
    delta = math.exp(log_delta)
    epsilon = gaussian.epsilon(mu, delta)
    assert gaussian.delta(mu, epsilon) <= delta * (1 + 1e-12)
    assert epsilon == 0 or gaussian.delta(mu, epsilon * (1 - 1e-10)) > delta * (1 - 1e-12)
    if 0 < epsilon < 1e5:
        assert gaussian.largest_mu(epsilon, delta) == pytest.approx(mu, rel=1e-9)


@given(epsilon=st.floats(-4, 5).map(lambda x: 10**x), log_delta=st.floats(-690, -0.01))
def test_largest_mu_is_private_and_no_larger_one_is(epsilon, log_delta):
    delta = math.exp(log_delta)
    mu = gaussian.largest_mu(epsilon, delta)
    assert gaussian.log_delta(mu, epsilon) <= log_delta
    assert gaussian.log_delta(mu * (1 + 1e-10), epsilon) > log_delta


def test_largest_mu_without_epsilon_is_the_total_variation():
    assert gaussian.delta(gaussian.largest_mu(0.0, 0.2), 0.0) == pytest.approx(0.2, rel=1e-10)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_delta_must_be_a_fraction(delta):
    with pytest.raises(ValueError, match="delta"):
        gaussian.epsilon(1.0, delta)
    with pytest.raises(ValueError, match="delta"):
        gaussian.largest_mu(1.0, delta)


@pytest.mark.parametrize(("mu", "epsilon"), [(-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0)])
def test_negative_arguments_are_refused(mu, epsilon):
    with pytest.raises(ValueError, match="at least 0"):
        gaussian.delta(mu, epsilon)


@pytest.mark.parametrize("level", [1e-300, 1e-17, 1.2e-16, 1e-5, 0.5, 0.999999, 1 - 2**-53])
@pytest.mark.parametrize("loss", [0.0, 1e-300, 1e-18, 1e-5, 1.0])
def test_the_largest_mu_at_the_ends_of_the_scale(loss, level):
    mu = gaussian.largest_mu(loss, level)
    assert 0 < mu < np.inf
    assert gaussian.delta(mu, loss) <= level * (1 + 1e-9)


@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.1, 0.99])
def test_many_budgets_at_once(delta):
    """As one by one, to rounding, and never below."""
    mus = np.append(np.geomspace(1e-6, 1e9, 200), [np.inf, 0.5])
    together, alone = gaussian.epsilons(mus, delta), np.array([gaussian.epsilon(mu, delta) for mu in mus])
    np.testing.assert_allclose(together, alone, rtol=1e-12)
    assert np.all(gaussian.log_delta(mus, np.minimum(together, 1e300))[:-2] <= np.log(delta))


def test_an_epsilon_of_zero_is_not_decided_by_rounding():
    """At a δ that is δ_μ(0) to the last bits, the ε that is returned must be enough by fifty digits, too."""
    for mu in np.geomspace(1e-3, 8.0, 25):
        near = gaussian.delta(mu, 0.0)
        for delta in (np.nextafter(near, 0.0), near, np.nextafter(near, 1.0)):
            for found in (gaussian.epsilon(mu, delta), float(gaussian.epsilons(np.array([mu]), delta)[0])):
                with mpmath.workdps(60):
                    half, loss = mpmath.mpf(mu) / 2, mpmath.mpf(found)
                    upper, lower = (mpmath.ncdf(-loss / mpmath.mpf(mu) + sign * half) for sign in (1, -1))
                    assert upper - mpmath.exp(loss) * lower <= mpmath.mpf(delta)
