"""Sums on the grid are exact: no order, no place and no rounding shows in them, and no record exceeds its bound."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy import sparse

import clipsilon as cs
import reference
from clipsilon._core.parts import implements
from clipsilon._core.products import dot, measure_eight, measure_row
from clipsilon.engine import remote
from clipsilon.engine.arrays import Records
from clipsilon.engine.batch import add_penalties
from clipsilon.engine.grid import LARGEST, check_rounding, round_fed_back, scaling, step_grid
from clipsilon.privacy.auditing.bits import identify
from clipsilon.rules.clipping import Norm, Normalise, PerClass, add_clipped
from clipsilon.rules.feedback import ErrorFeedback, NoFeedback, recall, settle
from clipsilon.rules.noise import Gaussian
from clipsilon.rules.sampling import Full, Poisson

STEP = cs.schedules.Constant(0.5)
LOSSES = {
    "margins": cs.losses.Logistic(positive_weight=2.0),
    "penalised": cs.losses.Logistic(l2=0.3),
    "scores": cs.losses.Softmax(3),
    "penalised scores": cs.losses.Softmax(3, l2=0.2),
    "records": cs.losses.Quadratic(1.5),
}


@njit
def _one_and_eight(table, theta):
    return dot(table[0], theta), measure_row(table, 0, theta), measure_eight(table, (1, 0, 2, 0, 0, 1, 2, 0), theta)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("columns", [*range(1, 10), 31, 64, 501])
def test_a_sum_of_products_does_not_depend_on_its_place(columns, dtype):
    rng = np.random.default_rng(columns)
    table, theta = rng.standard_normal((3, columns)).astype(dtype), rng.standard_normal(columns)
    alone, (margin, square), eight = _one_and_eight(table, theta)
    assert [eight[k] for k in (1, 3, 4, 7)] == [alone] * 4 == [margin] * 4
    assert [eight[8 + k] for k in (1, 3, 4, 7)] == [square] * 4
    exact = sum(Fraction(float(a)) * Fraction(b) for a, b in zip(table[0], theta.tolist(), strict=True))
    size = float(np.abs(table[0].astype(float) * theta).sum())
    assert abs(Fraction(alone) - exact) <= (columns + 2) * 2.0**-53 * size
    assert len({eight[0], eight[2], alone}) == 3  # other rows have other sums


def _problem(loss, table=lambda x: x, order=slice(None), weights=None, response=None):
    x, y = reference.data(getattr(loss, "labels", "real"), records=70, features=5)
    x[np.abs(x) < 0.4] = 0.0
    labels = None if getattr(loss, "labels", "real") == "none" else y[order]
    own = None if weights is None else weights[order]
    return cs.Problem(table(x[order]), labels, loss=loss, weights=own, response=response)


@pytest.mark.parametrize("table", [lambda x: x, lambda x: x.astype(np.float32), sparse.csr_array], ids=lambda t: "")
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_order_of_the_records_does_not_show(loss, table):
    if isinstance(loss, cs.losses.Quadratic) and table is sparse.csr_array:
        return  # the quadratic loss is for dense tables
    rule = cs.Rule("full", STEP, Norm(0.8), Full(), Gaussian(0.05))
    runs = [
        cs.run(_problem(loss, table, order, np.linspace(0.2, 3, 70)), rule, 15, seed=1).theta
        for order in (slice(None), slice(None, None, -1), np.random.default_rng(0).permutation(70))
    ]
    np.testing.assert_array_equal(runs[1], runs[0])
    np.testing.assert_array_equal(runs[2], runs[0])


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_record_that_is_zeroed_out_leaves_the_bits_of_the_others_alone(loss):
    """With a public rate a record of weight 0 is as good as absent, although it takes a place in the batch."""
    rule = cs.Rule("all", STEP, Norm(0.8), Poisson(70, 1.0), Gaussian(0.05))
    without = np.delete(np.arange(70), 3)
    zeroed = np.ones(70)
    zeroed[3] = 0.0
    runs = [
        cs.run(_problem(loss, order=without), rule, 15, seed=1).theta,
        cs.run(_problem(loss, weights=zeroed), rule, 15, seed=1).theta,
        cs.run(_problem(loss), rule, 15, seed=1).theta,
    ]
    np.testing.assert_array_equal(runs[1], runs[0])
    assert abs(runs[2] - runs[0]).max() > 1e-6  # it does matter


@pytest.mark.parametrize("loss", [LOSSES["margins"], LOSSES["penalised"]], ids=["margins", "penalised"])
def test_neither_order_nor_others_show_where_records_react(loss):
    """Rows after their reaction are gathered in blocks of 64: 70 records fill one, and begin another."""
    rule, react = cs.Rule("all", STEP, Norm(0.8), Poisson(70, 1.0), Gaussian(0.05)), cs.responses.BestResponse(0.7)
    without, zeroed = np.delete(np.arange(70), 3), np.ones(70)
    zeroed[3] = 0.0
    few = np.arange(5)  # of which none is measured together with seven others
    cases = [
        (_problem(loss, order=without, response=react), _problem(loss, weights=zeroed, response=react)),
        (_problem(loss, response=react), _problem(loss, order=np.arange(70)[::-1], response=react)),
        (_problem(loss, order=few, response=react), _problem(loss, weights=(np.arange(70) < 5) * 1.0, response=react)),
    ]
    for pair in cases:
        one, other = (cs.run(case, rule, 15, seed=1).theta for case in pair)
        np.testing.assert_array_equal(one, other)


def test_a_record_whose_reaction_overflows_adds_nothing():
    """A row that becomes infinite is dropped; multiplied by 0 it would make the update NaN, and betray the record."""
    x, y = np.eye(3), np.array([0.0, 0.0, 1.0])
    rule = cs.Rule("full", STEP, Norm(1.0), Full(), Gaussian(0.1))
    runs = [
        cs.run(
            cs.Problem(
                x, y, loss=cs.losses.Logistic(), weights=weights, response=cs.responses.BestResponse(beta, 1e-9)
            ),
            rule,
            10,
            start=1e-3,
            seed=0,
        ).theta
        for beta, weights in ((1e308, None), (0.5, [1.0, 1.0, 0.0]))
    ]
    np.testing.assert_array_equal(*runs)


@njit
def _complete(loss, theta, grid, total):
    add_penalties(loss, theta, grid, total)


def _units(loss, clip, theta, table, labels, weights, std):
    """The sums of a full batch in units, and one record's bound in units, exactly."""
    rule = cs.Rule("full", STEP, clip, Full(), Gaussian(std))
    classes = getattr(loss, "classes", 1)
    problem = remote.RemoteProblem(3, theta.size // classes, loss=loss, response=None)
    bound = clip.bound()
    grid = step_grid(scaling(problem, rule, 1), bound, std, theta.size)
    assert grid.rounding > 0
    job = remote.Job(loss, problem.response, NoFeedback(), Full(), 3)
    step = remote.Step(0, remote.Models(theta, theta), clip, grid, 0, [])
    sums = remote.no_sums(job, step)
    remote.add_records(job, step, Records(table, labels, weights), sums)
    _complete(loss, theta, grid, sums)
    # The unit is rounded, so the exact one follows from the noise, which has 2^(32 − shift) units.
    return sums.v, Fraction(bound) / 3 / Fraction(std) * 2 ** (32 - int(grid.shift))


_SIZES = st.sampled_from([0.0, 1e-320, 1e-300, 1e-160, 1e-20, 1e-3, 0.3, 1.0, 7.0, 1e5, 1e20, 1e150, 1e160, 1e300])
_NUMBERS = st.builds(lambda size, part: size * part, _SIZES, st.floats(-1, 1))


_KINDS = ("dense", "single", "sparse")
_BOUNDED = [
    [cs.losses.Logistic(), cs.losses.Logistic(l2=0.1)],
    [cs.losses.SquaredError(), cs.losses.SquaredError(l2=50.0)],
    [cs.losses.Huber(0.7, 1e-3)],
    [cs.losses.Absolute()],
    [cs.losses.Softmax(2), cs.losses.Softmax(2, l2=5.0)],
]
_BOUNDING = [[Norm(1.0), Norm(1e-3)], [Normalise(1.0)], [PerClass(0.5, 2)]]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(data=st.data(), kind=st.integers(0, 2), loss=st.integers(0, 4))
def test_no_record_exceeds_its_bound(data, kind, loss):
    """Adversarial rows, labels, weights and models: what one record adds is never longer than the clip, exactly.

    Each type of loss and of clip meets each other one and each kind of table, in 15 kernels rather than 45.
    """
    assert_types_bounded(data, kind, loss, (kind + loss) % len(_BOUNDING))


@pytest.mark.verify
@settings(max_examples=400, deadline=None, derandomize=True)
@given(data=st.data(), kind=st.integers(0, 2), loss=st.integers(0, 4), clip=st.integers(0, 2))
def test_no_record_exceeds_its_bound_whatever_is_combined(data, kind, loss, clip):
    assert_types_bounded(data, kind, loss, clip)


def assert_types_bounded(data, kind, loss, clip):
    """Draw a loss and a clip of the types at these places, and compare what one record adds with its bound."""
    drawn_loss, drawn_clip = (data.draw(st.sampled_from(types)) for types in (_BOUNDED[loss], _BOUNDING[clip]))
    assert_bounded(data, _KINDS[kind], drawn_loss, drawn_clip)


@pytest.mark.parametrize(
    "loss", [cs.losses.PoissonDeviance(l2=2.0), cs.losses.GammaDeviance(l2=0.1), cs.losses.Pinball(0.9, 0.1)], ids=str
)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_record_exceeds_its_bound_where_slopes_are_skewed_or_explode(loss, data):
    assert_bounded(data, "dense", loss._replace(l2=data.draw(st.sampled_from([0.0, loss.l2]))), Norm(1.0))


def assert_bounded(data, kind, loss, clip):
    """Draw rows, labels, weights and a model, and compare what one record adds with its bound."""
    classes, columns = getattr(loss, "classes", 1), 4
    theta = np.array(data.draw(st.lists(_NUMBERS, min_size=columns * classes, max_size=columns * classes)))
    rows = np.array(data.draw(st.lists(_NUMBERS, min_size=3 * columns, max_size=3 * columns))).reshape(3, columns)
    if kind == "single":
        rows = np.clip(rows, -1e38, 1e38).astype(np.float32)
    binary = getattr(loss, "labels", "real") in ("binary", "class")
    labels = np.array([data.draw(st.sampled_from([0.0, 1.0]) if binary else _NUMBERS) for _ in range(3)])
    weights = np.array([data.draw(st.sampled_from([1.0, 0.5, 1e-3, 1e9])) for _ in range(3)])
    std = data.draw(st.sampled_from([1e-4, 0.1, 30.0]))
    table = sparse.csr_array(rows) if kind == "sparse" else rows
    with np.errstate(all="ignore"):
        whole, bound = _units(loss, clip, theta, table, labels, weights, std)
        zeroed, _ = _units(loss, clip, theta, table, labels, np.append(weights[:2], 0.0), std)
    assert np.array_equal(whole, np.rint(whole))
    assert np.abs(whole).max() <= LARGEST
    change = sum(Fraction(int(a) - int(b)) ** 2 for a, b in zip(whole.tolist(), zeroed.tolist(), strict=True))
    assert change <= bound**2


_HUBER, _LOGISTIC, _SOFTMAX = cs.losses.Huber(1.0, 1.0), cs.losses.Logistic(l2=1.4), cs.losses.Softmax(3)
_FLAT = -744.6e-150  # a score of −744.6 for a row of 1e150, with a probability of 5e-324
_EXTREMES = {
    # own·l2·⟨x, θ⟩ overflowed, and the two terms of the gradient seemed to cancel: 20 times the bound
    "large weight": (_HUBER, Norm(1.0), [10.0, 0.0], [-2.0, np.sqrt(96.0)], -1e3, 1e307),
    "large model": (_HUBER, Norm(1.0), [1e100, 0.0], [-1e90, 1e100], -1e200, 1e120),
    # own·l2 was not a normal number: 1.4 times the bound, and 1e24 times
    "small weight": (_LOGISTIC, Normalise(1.0), [1e60, 0.0], [0.0, 0.0], 1.0, 5e-324),
    "smaller penalty": (cs.losses.Huber(1.0, 1e-20), Normalise(1.0), [0.0, 1e60], [1e16, 0.0], 1e300, 1e-310),
    # the norm of slopes of 5e-324 is not known: √2 times the bound
    "small slopes": (_SOFTMAX, Normalise(1.0), [0.0, 0.0, _FLAT, 0.0, _FLAT, 0.0], [1e150, 0.0], 0.0, 1.0),
}


@pytest.mark.parametrize("case", _EXTREMES.values(), ids=_EXTREMES)
@pytest.mark.parametrize("table", [lambda x: x, sparse.csr_array], ids=["dense", "sparse"])
def test_no_record_exceeds_its_bound_where_products_overflow_or_underflow(case, table):
    loss, clip, theta, row, label, own = case
    rows, labels = table(np.array([[1.0, 0.0], [0.0, 1.0], row])), np.array([0.0, 0.0, label])
    with np.errstate(all="ignore"):
        found = [
            _units(loss, clip, np.array(theta), rows, labels, np.array([1.0, 1.0, weight]), 0.1)
            for weight in (own, 0.0)
        ]
    pairs = zip(found[0][0].tolist(), found[1][0].tolist(), strict=True)
    change = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs)
    assert change <= found[0][1] ** 2


def test_the_grid_is_the_same_in_compiled_code():
    """Where records are in chunks, the grid is computed by Python, also for a step without noise."""
    problem = remote.RemoteProblem(50, 3, loss=cs.losses.Logistic(l2=0.1), response=None)
    rule = cs.DiceSGD(STEP, 0.5, 0.6, 0.05, residual_cap=1.5, batch=20)
    public, compiled = scaling(problem, rule, 70), njit(lambda *about: step_grid(*about))
    for bound in (0.5, 1e-90, 1e-91, 1e90, np.inf):
        for std in (0.0, 0.05, 1e-7, 1e-90, 3e88, np.inf):
            assert step_grid(public, bound, std, 3) == compiled(public, bound, std, 3)


def test_a_record_may_reach_its_bound():
    rows = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 3.0, 4.0]])
    loss, theta, labels = cs.losses.SquaredError(), np.zeros(4), np.full(3, -100.0)
    found = [_units(loss, Norm(1.0), theta, rows, labels, own, 0.1) for own in (np.ones(3), np.array([1.0, 1, 0]))]
    assert np.linalg.norm(found[0][0] - found[1][0]) >= (1 - 1e-7) * float(found[0][1])


@pytest.mark.parametrize("table", [lambda x: x, sparse.csr_array], ids=["dense", "sparse"])
def test_a_record_that_is_not_finite_adds_nothing(table):
    """A row of zeros with a label of 1e307 once made the update NaN, which betrayed the record with certainty."""
    x = np.vstack((np.eye(3), np.zeros((1, 3))))
    rule = cs.Rule("full", STEP, Norm(1.0), Full(), Gaussian(0.1))
    for loss in (cs.losses.SquaredError(l2=0.1), cs.losses.SquaredError()):
        for label, own in ((1e307, 1e9), (1e300, 1.0)):  # the second only after its clip, in units of the grid
            problem = cs.Problem(table(x), [0.3, 0.2, 0.1, label], loss=loss, weights=[1.0, 1.0, 1.0, own])
            assert np.isfinite(cs.run(problem, rule, 20, seed=0).theta).all()


def test_the_bits_of_one_step_do_not_betray_the_data():
    """One released step of 20,000 coordinates; floating-point noise betrayed the data set 60 of 60 times.

    The attack is right by chance in half of the trials. More than 54 of 60 happen with probability 6e-11.
    """
    rng = np.random.default_rng(5)
    d, right = 20_000, 0
    records = rng.standard_normal((2, 1, d)) * 0.004
    rule = cs.Rule("one step", cs.schedules.Constant(1.0), Norm(1.0), Full(), Gaussian(1.0))
    problems = [cs.Problem(x, loss=cs.losses.Quadratic(1.0)) for x in records]
    sums = np.array([x[0] * min(1.0, 1.0 / np.linalg.norm(x[0])) for x in records])
    for trial in range(60):
        truth = trial % 2
        released = -cs.run(problems[truth], rule, 1, start=0.0, seed=trial).theta[0, -1]
        right += identify(released, sums, std=1.0) == truth
    assert right <= 54


def test_the_grid_does_not_depend_on_a_hidden_number_of_records():
    loss, theta = cs.losses.Logistic(), np.zeros(2)
    rule = cs.Rule("rate", STEP, Norm(1.0), Poisson(10, 0.1), Gaussian(0.1))
    grids = [
        step_grid(scaling(remote.RemoteProblem(m, 2, loss=loss, response=None), rule, 5), 1.0, 0.1, theta.size)
        for m in (10, 11, 10**7)
    ]
    assert grids[0] == grids[1] == grids[2]


@pytest.mark.parametrize("loss", [LOSSES["margins"], LOSSES["penalised"]], ids=["margins", "penalised"])
def test_the_update_with_a_fed_back_error_stays_on_the_grid(loss):
    """θ moves by odd multiples of half a unit; e need not be on the grid."""
    rule = cs.DiceSGD(cs.schedules.Constant(1.0), 0.5, 0.5, 0.05, residual_cap=1.5, batch=20)
    problem = _problem(loss)
    trace = cs.run(problem, rule, 1, seed=3, record=range(2))
    units = (trace.theta[0, 1] - trace.theta[0, 0]) / reference.grid(problem, rule, 1, 1).unit
    np.testing.assert_allclose(units, np.floor(units) + 0.5, atol=0.01)
    later = cs.run(problem, rule, 40, seed=3, record=range(41)).error[0]
    assert np.abs(later).max() > 1e-3
    assert grids_of(problem, rule, 40).largest_error > 1e3 * np.abs(later).max()


def grids_of(problem, rule, steps):
    return step_grid(scaling(problem, rule, steps), rule.clip.bound(), rule.noise.std, problem.dimension)


def test_long_runs_with_feedback_are_covered_and_endless_ones_are_not():
    problem = remote.RemoteProblem(100_000, 10, loss=cs.losses.Logistic(l2=1e-3), response=None)
    rule = cs.DiceSGD(STEP, 1.0, 1.0, 0.02, residual_cap=2.0, batch=500)
    check_rounding(problem, rule, 20_000)
    with pytest.raises(ValueError, match="steps must be fewer for DiceSGD"):
        check_rounding(problem, rule, 10**15)
    noisier = [grids_of(problem, rule, steps) for steps in (1, 20_000)]
    growth = (noisier[1].unit * 2.0 ** -noisier[1].shift) / (noisier[0].unit * 2.0 ** -noisier[0].shift) - 1
    assert 0 < growth <= 2.0**-6


@pytest.mark.parametrize("cap", [2.0, 1.5, 1.2, 1.02])
def test_much_noise_and_many_steps_are_covered(cap):
    """The noise of paper 3 for 10⁶ steps, and five times that: rounding is in proportion to what is rounded."""
    problem = remote.RemoteProblem(10_000, 10, loss=cs.losses.Logistic(), response=None)
    for noise in (99.0, 500.0):
        rule = cs.DiceSGD(STEP, 1.0, 1.0, noise, residual_cap=cap)
        check_rounding(problem, rule, 10**6)
        grid = grids_of(problem, rule, 10**6)
        assert grid.growth < 0.01
        assert grid.largest_error > 1000 * cap


def test_a_run_whose_rounding_no_certificate_covers_is_refused():
    problem = _problem(LOSSES["margins"])
    long = cs.DiceSGD(STEP, 1.0, 1.0, 1e9, residual_cap=2.0)
    assert np.isfinite(cs.account(long, problem.records, 1000, 1e-5).certified)
    with pytest.raises(ValueError, match="steps must be fewer for DiceSGD on 70 records in 5 dimensions, got 1000"):
        cs.run(problem, long, 1000)
    check_rounding(problem, cs.DiceSGD(STEP, 1.0, 1.0, 0.0, residual_cap=2.0), 10**15)  # nothing is certified of it
    many, correlated = remote.RemoteProblem(2**30, 4, loss=cs.losses.Logistic(), response=None), cs.CorrelatedSGD
    check_rounding(many, correlated(STEP, 1.0, 1e9), 2**28)  # charged by the least μ of its certificate
    with pytest.raises(ValueError, match="steps must be fewer for CorrelatedSGD"):
        check_rounding(many, correlated(STEP, 1.0, 1e9), 2**29)


class Loose(NamedTuple):
    """A user's cap that states a bound, which certificates do not rely on."""

    def bound(self):
        return 1e60


@implements(add_clipped, Loose)
def _(clip, vector, weight, total):
    for j in range(vector.size):
        total[j] += weight * vector[j]


def test_a_cap_of_the_user_does_not_take_away_the_grid():
    """Its certificate is that without a cap, which needs exact sums all the same."""
    problem = _problem(LOSSES["margins"])
    rule = cs.Rule("user", STEP, Norm(1.0), Full(), Gaussian(0.5), ErrorFeedback(Norm(1.0), Loose()))
    assert np.isfinite(cs.account(rule, 70, 3, 1e-5).certified)
    assert grids_of(problem, rule, 3).rounding > 0
    assert grids_of(problem, rule, 3).growth < 1e-6


def test_the_rounding_of_a_fed_back_error_is_within_its_allowance():
    """The recursion of e in float64 against fractions: one step, worst magnitudes."""
    rng = np.random.default_rng(0)
    problem, rule = _problem(LOSSES["margins"]), cs.DiceSGD(STEP, 0.5, 0.5, 0.05, residual_cap=1.5, batch=20)
    grid = grids_of(problem, rule, 100)
    unit, d = grid.unit, 5
    for _ in range(50):
        u, kept = (np.rint(rng.uniform(-1, 1, d) * 2.0**44) for _ in range(2))
        error = rng.uniform(-1, 1, d) * grid.largest_error
        v, after = _fed_back(rule.feedback, grid, unit * u, unit * kept, error.copy())
        length = sum(Fraction(x) ** 2 for x in error.tolist())
        factor = min(1.0, 0.5 / float(length) ** 0.5)
        exact = [Fraction(e) + (Fraction(k) - Fraction(a)) * Fraction(unit) - Fraction(factor) * Fraction(e)
                 for e, k, a in zip(error.tolist(), kept.tolist(), u.tolist(), strict=True)]  # fmt: skip
        headroom = grid.largest_error / (2.0**48 * unit)
        most = Fraction(grid.largest_error)
        for j in range(d):
            cut = min(max(exact[j], -most), most)
            assert abs(Fraction(after[j]) - cut) <= Fraction(unit) * (Fraction(headroom) / 4 + 1)
        np.testing.assert_allclose(v / unit, np.rint(v / unit), rtol=0, atol=0.01)


@njit
def _fed_back(feedback, grid, v, kept, error):
    recall(feedback, error, v)
    settle(feedback, error, kept, v)
    round_fed_back(grid, error, v)
    return v, error
