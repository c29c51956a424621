"""Paper 3's bounds against brute force, exact chains and runs; and the run that violates Theorem 3.7 as printed."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import clipsilon as cs
import reference
from clipsilon.theory import dice

MARGIN = 6.0  # standard errors; see `exceeds`


def constants(**changes):
    base = dice.DiceConstants(0.5, 2.0, 3.0, 1.5, dimension=2, clip=1.0, error_clip=2.0, noise_std=0.3, batch=3)
    return base._replace(**changes)


# --- the formulas ---


@pytest.mark.parametrize("error_clip", [0.5, 1.9, 2.0, 5.0])
def test_largest_error_is_that_of_the_worst_gradients(error_clip):
    case, e = constants(error_clip=error_clip), 0.0
    for t in range(1, 50):
        e = max(0.0, e - error_clip) + case.residual  # the largest possible residuals, all in one direction
        assert e <= dice.largest_error(case, t) * (1 + 1e-12)
    if error_clip <= case.residual:
        assert e == pytest.approx(dice.largest_error(case, 49))


@pytest.mark.parametrize(("bound", "error_clip"), [(3.0, 1.0), (3.0, 2.0), (3.0, 5.0), (20.0, 10.0)])
@pytest.mark.parametrize("step", [0.001, 0.1, 0.5])
def test_virtual_gap_solves_its_recursion(step, bound, error_clip):
    """Iterate eq. 11 with the largest error or, for small steps, together with eq. 12."""
    case, steps = constants(gradient_bound=bound, error_clip=error_clip), 40
    mu, L, worst = case.strong_convexity, case.smoothness, dice.largest_error(case, steps)
    share = error_clip / max(error_clip, worst)
    plain = lyapunov = 1.7
    added = 0.5 * L * step**2 * (2 * 0.3**2 + 1.5**2 / 3)
    weight = step**3 * L**2 / share
    for _ in range(steps):
        plain = (1 - step * mu) * plain + added + 0.5 * step**3 * L**2 * worst**2
        lyapunov = (1 - step * mu) * lyapunov + added + weight * (2 / share + 1.5**2 / 3)
    small = 4 * (step * L / share) ** 2 <= 1 - step * L and step * mu <= share / 2
    expected = min(plain, lyapunov) if small else plain
    assert dice.virtual_gap(case, step, steps, gap=1.7) == pytest.approx(expected)
    assert small == (step <= 3 * share / (8 * L))  # none of these steps lies between the two conditions


def exact_error_squares(error_clip, residuals, chances, steps):
    """Return E e_t² for t ≤ steps, e_{t+1} = e_t − clip(e_t, C2) + r with integer r, from the whole distribution of e."""
    reach = 1500
    e = np.arange(-reach, reach + 1)
    left = (e - np.clip(e, -error_clip, error_clip)) + reach
    law, squares = np.zeros(e.size), []
    law[reach] = 1.0
    for _ in range(steps):
        kept = np.bincount(left, law, e.size)
        law = sum(p * np.roll(kept, r) for r, p in zip(residuals, chances, strict=True))
        squares.append(law @ e**2)
    assert law[:20].sum() + law[-20:].sum() < 1e-12
    return np.array(squares)


@pytest.mark.parametrize(
    ("residuals", "chances", "error_clip"),
    [([0, 10], [0.9, 0.1], 2), ([-1, 9], [0.8, 0.2], 3), ([-12, 12], [0.5, 0.5], 4), ([0, 3], [0.5, 0.5], 2)],
)
def test_error_square_holds_for_exact_chains(residuals, chances, error_clip):
    mean = abs(np.dot(residuals, chances))
    variance = np.dot(np.square(residuals), chances) - mean**2
    most = max(np.abs(residuals))
    case = constants(
        spread=np.sqrt(variance), batch=1, clip=max(mean, 1e-9), error_clip=error_clip, mean_gradient_bound=0.0,
        gradient_bound=most + max(mean, 1e-9),
    )  # fmt: skip
    exact = exact_error_squares(error_clip, residuals, chances, 2000)
    bounds = np.array([dice.error_square(case, t) for t in (1, 2, 5, 20, 100, 2000)])
    assert (exact[[0, 1, 4, 19, 99, 1999]] <= bounds).all()
    assert bounds[-1] < dice.largest_error(case, 2000) ** 2  # does not grow with the run
    assert bounds[-1] < 150 * exact[-1]


def test_error_square_solves_its_recursion():
    """Find the largest E cosh(λ‖e‖) by iteration, and the best λ by search."""
    case = constants(gradient_bound=9.0, error_clip=3.5, mean_gradient_bound=1.2, spread=3.0, batch=2)
    inflow, jump = 2.2, 8.0 + 2.2

    def bound(rate):
        growth = 1 + 4.5 * (math.exp(rate * jump) - 1 - rate * jump) / jump**2
        level = 1.0
        for _ in range(5000):
            level = growth * (math.exp(-rate * 1.3) * level + math.cosh(rate * inflow))
            if level > 1e9:
                return 1e12  # beyond the λ for which the mean stays bounded
        return (math.acosh(level) / rate) ** 2

    best = minimize_scalar(bound, bounds=(0.02, 0.3), method="bounded", options={"xatol": 1e-6}).fun
    assert dice.error_square(case, 10**6) == pytest.approx(best, rel=1e-3)


def test_error_square_without_drift_is_the_largest():
    for case in (
        constants(error_clip=1.5),
        constants(error_clip=1.5, mean_gradient_bound=0.6),
        constants(mean_gradient_bound=0.1),
    ):
        assert dice.error_square(case, 100) == dice.largest_error(case, 100) ** 2


def test_without_clipping_the_bound_is_that_of_sgd():
    case = constants(clip=3.0)
    for step in (0.001, 0.1):
        kept = (1 - 0.5 * step) ** 50
        floor = step * 2.0 / (2 * 0.5) * (2 * 0.3**2 + 1.5**2 / 3)
        assert dice.virtual_gap(case, step, 50, gap=1.0) == pytest.approx(kept + (1 - kept) * floor)
        assert dice.released_gap(case, step, 50, gap=1.0) == pytest.approx(kept + (1 - kept) * floor)


def test_the_suggested_step_gives_the_rate():
    """Of order log(T)/T if gradients stay within both clips or drift back; constant if they do neither."""
    within, drifting, stuck = constants(), constants(error_clip=1.9, mean_gradient_bound=0.5), constants(error_clip=1.9)
    for case in (within, drifting):
        bounds = [
            dice.released_gap(case, dice.suggested_step(case, T, 1.0), T, 1.0) * T / math.log(T) for T in (10**6, 10**8)
        ]
        assert bounds[1] == pytest.approx(bounds[0], rel=0.3)
    assert dice.released_gap(stuck, dice.suggested_step(stuck, 10**8, 1.0), 10**8, 1.0) > 1.0


def test_the_suggested_step_balances_start_and_noise():
    case, T = constants(), 10**5
    step = dice.suggested_step(case, T, gap=2.0)
    noise = 2 * 0.3**2 + 5 * 1.5**2 / 12 + 0.5
    assert math.exp(-0.5 * step * T) * 2.0 == pytest.approx(2.0 * noise / (2 * 0.5**2 * T))
    assert dice.suggested_step(case, 1, gap=2.0) == 0.5  # 1/L
    assert dice.suggested_step(case, T, gap=0.0) == pytest.approx(1 / (0.5 * T))


# --- Theorem 3.7 as printed ---


def test_where_gradients_stay_within_both_clips_the_printed_bound_is_weaker():
    rng = np.random.default_rng(0)
    for _ in range(200):
        mu, ratio, clip, noise, spread, gap = rng.exponential(size=6)
        bound = clip + rng.exponential()
        case = constants(
            strong_convexity=mu,
            smoothness=mu * (1 + ratio),
            clip=clip,
            gradient_bound=bound,
            error_clip=bound - clip,
            noise_std=noise,
            spread=spread,
        )
        steps = int(rng.integers(1, 1000))
        step = dice.printed_step(case, steps) * rng.random()
        assert dice.virtual_gap(case, step, steps + 1, gap) <= dice.printed_bound(case, step, steps, gap)


def test_a_run_breaks_the_printed_bound():
    """One record and f = ½x², so nothing is random. G is the gradient at the start, which no later one exceeds."""
    case = dice.DiceConstants(
        1.0, 1.0, gradient_bound=1000.0, spread=0.0, dimension=1, clip=1.0, error_clip=1.1, noise_std=0.0
    )
    steps = 10**6
    step = dice.printed_step(case, steps)
    rule = cs.DiceSGD(step=cs.schedules.Constant(step), clip=1.0, error_clip=1.1, noise_std=0.0)
    problem = cs.Problem([0.0], loss=cs.losses.Quadratic())
    trace = cs.run(problem, rule, steps=steps + 1, start=1000.0, seed=0, record=1000, n_jobs=1)
    assert np.abs(trace.theta).max() <= 1000.0
    assert trace.error is not None
    virtual, released = 0.5 * (trace.theta - step * trace.error)[0, -1, 0] ** 2, 0.5 * trace.theta[0, -1, 0] ** 2
    printed = dice.printed_bound(case, step, steps, gap=5e5)
    assert virtual > 10_000 * printed
    assert released > 500 * printed
    assert virtual <= dice.virtual_gap(case, step, steps + 1, gap=5e5)
    assert released <= dice.released_gap(case, step, steps + 1, gap=5e5)


# --- runs ---


def quadratic():
    """A tenth of the records has gradients up to 10 times as long as the clip."""
    problem = cs.Problem(np.r_[np.zeros(9), 1.0], loss=cs.losses.Quadratic(10.0))
    return problem, 1.0, 1.0, 0.0


def logistic():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((40, 3))
    y = (x[:, 0] + rng.standard_normal(40) > 0.5).astype(float)
    problem = cs.Problem(x, y, loss=cs.losses.Logistic(l2=0.2))
    return problem, 0.2, 0.2 + np.linalg.eigvalsh(x.T @ x / 40)[-1] / 4, np.sqrt(np.mean((x**2).sum(axis=1) ** 2)) / 4


def squared_error(rank_deficient=False):
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, (30, 2))
    if rank_deficient:
        x = x @ np.array([[1.0, 0.5, -0.5], [0.5, 1.0, 0.5]])  # f is flat along one direction, but satisfies PL
    y = x @ np.ones(x.shape[1]) + rng.standard_normal(30)
    eigenvalues = np.linalg.eigvalsh(x.T @ x / 30)
    turn = np.sqrt(np.mean((x**2).sum(axis=1) ** 2))
    return cs.Problem(x, y, loss=cs.losses.SquaredError()), eigenvalues[eigenvalues > 1e-9].min(), eigenvalues[-1], turn


# Each with μ, L, and how fast the deviations g_i − ∇f change with the model, in root mean square
PROBLEMS = {
    "quadratic": quadratic,
    "logistic": logistic,
    "squared error": squared_error,
    "squared error, PL": lambda: squared_error(rank_deficient=True),
}
LOOSE = {"quadratic": 4, "logistic": 40, "squared error": 30, "squared error, PL": 250}  # largest bound over mean


def exceeds(values, bounds):
    """Return whether a mean over replicates is above its bound by more than chance allows.

    The mean of 200 replicates, each the sum of many small steps, is close to normal: six standard errors have a
    chance of 1e-9, and there are at most 20 of them a test.
    """
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return (mean - MARGIN * error > bounds).any()


def spread_at(problem, theta):
    gradients = np.array(
        [reference.gradient(problem.loss, theta, x, y) for x, y in zip(problem.features, problem.labels, strict=True)]
    )
    return np.sqrt(np.mean(((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1)))


def runs(name, clip, error_clip, step, batch, steps=2000, start=1.0):
    """Return (case, virtual, released, bounds of each): the gaps of its runs beside their bounds."""
    problem, least, most, turn = PROBLEMS[name]()
    minimum = cs.stable_point(problem).theta
    first = minimum + start
    rule = cs.DiceSGD(step=cs.schedules.Constant(step), clip=clip, error_clip=error_clip, noise_std=0.2, batch=batch)
    trace = cs.run(
        problem, rule, steps=steps, start=first, replicates=200, seed=3, record=np.arange(steps + 1), n_jobs=1
    )
    around = np.sqrt(trace.gap(minimum)).max()  # no run was further away at any step
    case = dice.DiceConstants(
        least, most, problem.constants(np.linalg.norm(minimum) + around).gradient_bound,
        spread_at(problem, minimum) + turn * around, problem.dimension, clip, error_clip, 0.2, batch, most * around,
    )  # fmt: skip
    at = np.unique(np.geomspace(1, steps, 20).round().astype(int))
    risk = cs.metrics.performative_risk
    virtual, released = (
        risk(problem, models[:, at]) - risk(problem, minimum)
        for models in (trace.theta - step * trace.error, trace.theta)
    )
    gap = float(risk(problem, first) - risk(problem, minimum))
    bounds = [np.array([bound(case, step, int(t), gap) for t in at]) for bound in (dice.virtual_gap, dice.released_gap)]
    return case, virtual, released, *bounds


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("batch", [1, 4])
def test_bounds_hold_over_runs_within_both_clips(name, batch):
    """C1 + C2 ≥ G + σ: no constant bias, however much the first clip removes from a gradient."""
    case, virtual, released, *bounds = runs(name, clip=0.5, error_clip=20.0, step=0.02, batch=batch)
    assert case.residual <= case.error_clip
    assert case.residual > 2 * case.clip  # clipping is active
    assert not exceeds(virtual, bounds[0])
    assert not exceeds(released, bounds[1])
    assert bounds[0][-1] < LOOSE[name] * virtual[:, -1].mean()  # and the bounds are informative


@pytest.mark.parametrize("name", PROBLEMS)
def test_bounds_hold_over_runs_that_pile_up_error(name):
    """With neither condition, the bounds grow with T, and hold."""
    case, virtual, released, *bounds = runs(name, clip=0.1, error_clip=0.2, step=0.002, batch=1)
    assert case.residual > case.error_clip
    assert case.clip + case.mean_gradient_bound > case.error_clip
    assert not exceeds(virtual, bounds[0])
    assert not exceeds(released, bounds[1])


def test_bounds_hold_over_runs_that_drift_back():
    """C2 > C1 + G: records far above both clips, and yet an error far below the clipping bias, for any T."""
    case, virtual, released, *bounds = runs(
        "quadratic", clip=1.0, error_clip=2.0, step=0.001, batch=1, steps=5000, start=0.3
    )
    assert case.residual > 3 * case.error_clip
    assert case.clip + case.mean_gradient_bound < case.error_clip
    assert not exceeds(virtual, bounds[0])
    assert not exceeds(released, bounds[1])
    bias = 0.5 * cs.clipping_bias(PROBLEMS["quadratic"]()[0], 1.0)
    assert bounds[1][-1] < bias / 10
    assert dice.released_gap(case, 0.001, 10**9, 1.0) < bias / 10


# --- what the paper claims ---


@pytest.mark.parametrize("batch", [1, 7])
def test_claimed_noise_is_theorem_3_8s(batch):
    case = constants(batch=batch, gradient_bound=100.0)
    spread = 1.0**2 + 2 * (batch * 2.0) ** 2
    formula = np.sqrt(32 * 500 * spread * np.log(1e5)) / (1000 * 0.7)
    assert dice.claimed_noise(case, 1000, 500, 0.7, 1e-5) == pytest.approx(formula)
    rule = cs.DiceSGD(step=cs.schedules.Constant(0.1), clip=1.0, error_clip=2.0, noise_std=1.0, batch=batch)
    noisy = cs.calibrate(rule, epsilon=0.7, delta=1e-5, records=1000, steps=500, how="paper")
    assert noisy.noise.std == pytest.approx(formula)
    assert not cs.account(noisy, records=1000, steps=500, delta=1e-5).claim_holds


@pytest.mark.parametrize(("bound", "least"), [(1.0, 0.0), (3.0, 2.0), (7.0, 6.0), (7.1, 6.0)])
def test_claimed_noise_knows_how_long_gradients_are(bound, least):
    """G' = G + σ − C_1, where it is less than C = B·C_2 = 6."""
    case, spread = constants(gradient_bound=bound), 1.0**2 + 2 * least**2
    formula = np.sqrt(32 * 500 * spread * np.log(1e5)) / (1000 * 0.7)
    assert dice.claimed_noise(case, 1000, 500, 0.7, 1e-5) == pytest.approx(formula)


def test_tradeoff_is_corollary_3_9s():
    case, (records, epsilon, delta) = constants(batch=1), (10**5, 0.5, 1e-5)
    spread = 1.0**2 + 2 * 2.0**2
    end = dice.tradeoff(case, records, epsilon, delta, gap=1.0)
    assert end.steps == int((records * epsilon) ** 2 / (spread * np.log(1 / delta)))
    assert end.noise_std == pytest.approx(np.sqrt(32), rel=1e-6)
    assert end.order == pytest.approx(
        spread * np.log(records * epsilon) * np.log(1 / delta) / (records * epsilon) ** 2, rel=1e-6
    )
    assert end.gap == dice.released_gap(case._replace(noise_std=end.noise_std), end.step, end.steps, 1.0)
    more = dice.tradeoff(case, 10 * records, epsilon, delta, gap=1.0)
    assert more.gap / end.gap == pytest.approx(more.order / end.order, rel=0.2)  # the rate that the corollary states


def test_table_1():
    case = constants(batch=1)
    plain, clipped, dicesgd = dice.comparison(case, 10**4, steps=100, epsilon=0.5, delta=1e-5, bias=0.25)
    unit = np.log(1e5) / (10**4 * 0.5) ** 2
    assert [row.algorithm for row in (plain, clipped, dicesgd)] == ["DPSGD", "DPSGD-GC", "DiceSGD"]
    assert plain.rate == pytest.approx(9 * unit)
    assert clipped.rate == pytest.approx(unit + 0.25)
    assert dicesgd.rate == pytest.approx(9 * np.log(5000) * unit)
    for row, size in ((plain, 9), (clipped, 1), (dicesgd, 9)):
        assert row.noise_variance == pytest.approx(100 * size * unit)
        assert all(row)


# --- App. B.1 ---


@pytest.mark.parametrize("clip", [0.01, 0.5, 1.0, 1.5, 3.0, 6.2])
def test_constant_bias_is_attained(clip):
    example = dice.constant_bias(clip)
    assert cs.stable_point(example.problem).theta == pytest.approx(example.stable, abs=1e-8)
    assert cs.clipped_point(example.problem, clip).theta == pytest.approx(example.clipped, abs=1e-8)
    assert abs(example.clipped) >= (0.5 if clip <= 1 else 1 / (clip + 2))
    assert (
        abs(cs.clipped_point(example.problem, clip).theta - example.problem.records / (example.problem.records + clip))
        > 0.5
    )


# --- wrong input ---


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: constants(strong_convexity=3.0), "strong_convexity must be at most smoothness"),
        (lambda: constants(clip=0.0), "clip must be a number above 0"),
        (lambda: constants(mean_gradient_bound=-1.0), "mean_gradient_bound must be a number of at least 0"),
        (
            lambda: dice.virtual_gap(constants(), 0.6, 10, 1.0),
            "step must be at most 0.5 for this bound to hold, got 0.6",
        ),
        (lambda: dice.virtual_gap(constants(), 0.1, 0, 1.0), "steps must be a whole number"),
        (lambda: dice.released_gap(constants(), 0.1, 10, -1.0), "gap must be a number of at least 0"),
        (lambda: dice.printed_bound(constants(), 0.1, 10, 1.0), "step must be at most 0.04688"),
        (lambda: dice.tradeoff(constants(), 10, 0.1, 1e-5, 1.0), "records must be more for epsilon=0.1"),
        (lambda: dice.claimed_noise(constants(), 10, 10, 1.0, 2.0), "delta must be a number above 0 and below 1"),
        (lambda: dice.constant_bias(0.0), "clip must be a number above 0"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(call, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")) as caught:
        call()
    assert "\n" not in str(caught.value)
