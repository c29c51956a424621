"""People with several rows: gathered, sampled, averaged and clipped as the plain reference does it."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy import sparse

import clipsilon as cs
import reference
from clipsilon._core import checks
from clipsilon.engine import remote
from clipsilon.engine.arrays import Records
from clipsilon.engine.batch import add_penalties
from clipsilon.engine.grid import LARGEST, scaling, step_grid
from clipsilon.engine.means import gradient_norms, mean_gradient, mean_loss, record_gradients
from clipsilon.engine.threads import step_threads
from clipsilon.estimators.people import hash_people
from clipsilon.rules.clipping import Norm, Normalise, PerClass
from clipsilon.rules.feedback import NoFeedback
from clipsilon.rules.noise import Gaussian
from clipsilon.rules.sampling import Full
from registry import STEP

TABLES = {
    "float64": lambda x: x,
    "float32": lambda x: x.astype(np.float32),
    "sparse": sparse.csr_array,
}
LOSSES = {
    "logistic": cs.losses.Logistic(positive_weight=2.0),
    "penalised": cs.losses.Logistic(l2=0.3),
    "softmax": cs.losses.Softmax(3, l2=0.2),
    "quadratic": cs.losses.Quadratic(1.5),
}
RULES = {
    "clipped": cs.DPSGD(STEP, clip=0.8, noise_std=0.05, batch=60),
    "plain": cs.SGD(cs.schedules.Constant(0.01), batch=7),
    "capped": cs.DiceSGD(STEP, 0.8, 1.1, 0.05, residual_cap=1.3, batch=60, sampling="poisson"),
    "cyclic": cs.CorrelatedSGD(STEP, 0.8, 0.1, batch=20, sampling="cyclic"),
    "tracked": cs.TrackedSGD(STEP, 0.4, 0.1, batch=60),
    "adaptive": cs.AdaptiveDPSGD(STEP, 0.8, 1.5, batch=60, quantile=0.7, count_noise=1.2),
    "selected": cs.NoisySelection(STEP, lipschitz=2.5, noise_std=0.2, selection_epsilon=3.0),
}


def problem(loss, table=lambda x: x, weighted=False, response=None, max_rows=None, rows=300, people=120):
    kind = getattr(loss, "labels", "real")
    x, y = reference.data(kind, records=rows, features=5)
    x[np.abs(x) < 0.4] = 0.0
    rng = np.random.default_rng(1)
    weights = rng.choice([0.0, 0.5, 2.0], rows) if weighted else None
    groups = rng.integers(0, people, rows)
    about = {"loss": loss, "response": response, "weights": weights}
    return cs.Problem(table(x), None if kind == "none" else y, **about, groups=groups, max_rows=max_rows)


def close_to_reference(case, rule, steps=20):
    trace = cs.run(case, rule, steps, start=0.3, seed=5, record=range(steps + 1), n_jobs=2)
    theta, error, output = reference.run(case, rule, steps, 0.3, 5)
    close = {"rtol": 1e-9, "atol": 1e-11 + reference.allowance(case, rule, steps)["atol"]}
    np.testing.assert_allclose(trace.theta[0], theta, **close)
    np.testing.assert_allclose(trace.output[0], output, **close)
    if trace.error is not None:
        np.testing.assert_allclose(trace.error[0], error, **close)


CASES = [  # every loss, rule and kind of table, but not every combination
    ("logistic", "clipped", "float64", {"max_rows": 2}),
    ("logistic", "plain", "float32", {}),
    ("logistic", "capped", "sparse", {"weighted": True}),
    ("logistic", "cyclic", "float64", {}),
    ("logistic", "adaptive", "float64", {"weighted": True}),
    ("logistic", "selected", "float64", {}),
    ("penalised", "clipped", "sparse", {"weighted": True}),
    ("penalised", "capped", "float64", {}),
    ("penalised", "tracked", "float64", {"weighted": True, "max_rows": 3}),
    ("softmax", "clipped", "sparse", {}),
    ("softmax", "capped", "float64", {"weighted": True}),
    ("quadratic", "clipped", "float64", {"response": cs.responses.LocationShift(0.3)}),
    ("quadratic", "tracked", "float64", {"response": cs.responses.LocationShift(0.3)}),
    ("logistic", "adaptive", "sparse", {"response": cs.responses.BestResponse(0.4), "weighted": True}),
    ("logistic", "capped", "float64", {"response": cs.responses.BestResponse(0.4)}),
]


@pytest.mark.parametrize(("loss", "rule", "table", "more"), CASES)
def test_a_run_equals_the_reference(loss, rule, table, more):
    close_to_reference(problem(LOSSES[loss], TABLES[table], **more), RULES[rule])


def test_rows_are_sorted_by_person_in_the_order_of_their_first_appearance():
    x = np.arange(7.0)
    case = cs.Problem(x, loss=cs.losses.Quadratic(), groups=list("babcaab"), weights=x)
    assert case.features.ravel().tolist() == [0, 2, 6, 1, 4, 5, 3]
    assert case.weights.tolist() == [0, 2, 6, 1, 4, 5, 3]
    assert case.starts.tolist() == [0, 3, 6, 7]
    assert (case.records, case.rows, case.groups.tolist()) == (3, 7, [0, 0, 0, 1, 1, 1, 2])
    assert repr(case).startswith("Problem(3 people, 7 records × 1")


def test_the_first_rows_of_a_person_are_kept_whatever_others_have():
    x, ids = np.arange(9.0), list("abababbbb")
    both = cs.Problem(x, loss=cs.losses.Quadratic(), groups=ids, max_rows=2)
    assert both.features.ravel().tolist() == [0, 2, 1, 3]
    fewer = cs.Problem(x[:4], loss=cs.losses.Quadratic(), groups=ids[:4], max_rows=2)
    assert fewer.features.ravel().tolist() == [0, 2, 1, 3]


def test_an_id_is_the_same_as_a_number_and_as_text():
    """As pandas reads a column of a long file, piece by piece; the digests are what Dask's chunks are compared by."""
    ids = np.array([1, "1", 1.0, Decimal("1.00"), "2", 2, 0.5, "0.5", "ann", 10**400], dtype=object)
    people = checks.people("groups", ids, len(ids))
    assert people.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 4]
    digests = hash_people(ids, len(ids), key=7)
    np.testing.assert_array_equal(digests[:, None] == digests, people[:, None] == people)
    for odd in ([1, np.inf], [object(), object()]):
        with pytest.raises(ValueError, match=r"^groups must (name the person|hold numbers or text)"):
            checks.people("groups", np.array(odd, dtype=object), 2)


@pytest.mark.parametrize("ids", [np.arange(300), [f"p{k}" for k in range(300)], np.arange(300.0)[::-1]])
def test_people_with_one_row_are_records(ids):
    """To the last bit: what others add must not depend on whether somebody has a second row."""
    x, y = reference.data(records=300)
    rule = RULES["clipped"]
    alone = cs.Problem(x, y, loss=LOSSES["penalised"])
    people = cs.Problem(x, y, loss=LOSSES["penalised"], groups=ids)
    thetas = [cs.run(case, rule, 20, seed=3).theta for case in (alone, people)]
    np.testing.assert_array_equal(thetas[0], thetas[1])


def test_repeated_rows_of_a_person_count_once():
    x, y = reference.data(records=120)
    times = np.random.default_rng(0).integers(1, 6, 120)
    rule = RULES["capped"]
    once = cs.Problem(x, y, loss=LOSSES["penalised"])
    often = cs.Problem(
        np.repeat(x, times, 0), np.repeat(y, times), loss=LOSSES["penalised"], groups=np.repeat(np.arange(120), times)
    )
    thetas = [cs.run(case, rule, 20, seed=3).theta for case in (once, often)]
    np.testing.assert_allclose(thetas[0], thetas[1], atol=reference.allowance(once, rule, 20)["atol"])


@pytest.mark.parametrize("rule", ["clipped", "capped", "tracked"])
def test_threads_do_not_change_the_result(rule):
    case = problem(LOSSES["penalised"], rows=4_000, people=1_500)
    how = {"clipped": {"batch": 700}, "capped": {"batch": 700}, "tracked": {"batch": 700}}[rule]
    made = {
        "clipped": lambda: cs.DPSGD(STEP, 0.8, 0.05, **how),
        "capped": lambda: cs.DiceSGD(STEP, 0.8, 1.1, 0.05, residual_cap=1.3, sampling="poisson", **how),
        "tracked": lambda: cs.TrackedSGD(STEP, 0.4, 0.1, **how),
    }[rule]()
    assert step_threads(case, made, 3).members == 3
    runs = [cs.run(case, made, 30, seed=2, n_jobs=jobs).theta for jobs in (1, 2, 3)]
    np.testing.assert_array_equal(runs[1], runs[0])
    np.testing.assert_array_equal(runs[2], runs[0])


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_order_of_people_does_not_show(table):
    """Nor where a person's rows lie among those that are measured together, of which one person has more than fit."""
    x, y = reference.data(records=240, features=5)
    x[np.abs(x) < 0.4] = 0.0
    ids = np.append(np.random.default_rng(0).integers(0, 60, 90), np.full(150, 3))
    rule = cs.Rule("full", STEP, Norm(0.8), Full(), Gaussian(0.05))
    turned = np.lexsort((np.arange(240), -ids))  # other people first, each with their rows in the same order
    runs = [
        cs.run(cs.Problem(table(x[order]), y[order], loss=LOSSES["penalised"], groups=ids[order]), rule, 15, seed=1)
        for order in (np.arange(240), turned)
    ]
    np.testing.assert_array_equal(runs[1].theta, runs[0].theta)


def test_a_run_can_be_resumed_and_other_people_are_another_run(tmp_path):
    case, rule = problem(LOSSES["penalised"]), RULES["tracked"]
    whole = cs.run(case, rule, 40, seed=2, record=[40])
    cs.run(case, rule, 40, seed=2, record=[40], checkpoint=tmp_path / "c")
    again = cs.run(case, rule, 40, seed=2, record=[40], checkpoint=tmp_path / "c")
    np.testing.assert_array_equal(again.theta, whole.theta)
    other = problem(LOSSES["penalised"], people=119)
    with pytest.raises(ValueError, match="another run"):
        cs.run(other, rule, 40, seed=2, record=[40], checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        ([1, 2], "groups must hold the id of a person for each of 3 rows"),
        ([1.0, np.nan, 2.0], r"groups must name the person of every row, got 1 row\(s\) without"),
        (["a", " ", ""], "got 2 row"),
        (["a", None, "b"], "got 1 row"),
        (np.array(["a", float("nan"), 3], dtype=object), "got 1 row"),
        (np.ma.masked_array([1, 2, 3], [False, True, False]), "got 1 row"),
        (np.array(["2026-01-01"] * 3, dtype="datetime64[D]"), "must hold numbers or text"),
        (np.array([[1], {}, "a"], dtype=object), "must hold numbers or text"),
    ],
)
def test_ids_with_gaps_are_refused(groups, match):
    with pytest.raises(ValueError, match=match):
        cs.Problem([0.0, 1.0, 2.0], loss=cs.losses.Quadratic(), groups=groups)


def test_what_is_not_made_for_people_is_refused():
    case = problem(LOSSES["penalised"])
    with pytest.raises(ValueError, match="max_rows must be left out without groups"):
        cs.Problem([0.0], loss=cs.losses.Quadratic(), max_rows=2)
    with pytest.raises(ValueError, match="max_rows must be a whole number of at least 1"):
        problem(LOSSES["penalised"], max_rows=0)
    for refused in (cs.stable_point, lambda one: cs.clipped_point(one, 1.0), lambda one: one.constants(2.0)):
        with pytest.raises(ValueError, match="problem must have no groups"):
            refused(case)
    local = cs.Problem([[0.1], [0.2]], [0.0, 1.0], loss=cs.losses.MallowsLogistic(), groups=[1, 1])
    with pytest.raises(ValueError, match="groups must be None for local privacy"):
        cs.run(local, cs.LDPSGD(STEP, 1.0), 1)


# -- means ------------------------------------------------------------------------------------------------------------


def test_means_are_over_people_of_means_over_their_rows():
    case = problem(LOSSES["penalised"], weighted=True)
    theta, deployed = np.linspace(-0.4, 0.5, 5), np.zeros(5)
    gradients = [
        np.mean([case.weights[i] * reference.gradient(case.loss, theta, case.features[i], case.labels[i])
                 for i in reference.rows_of(case, person)], axis=0)
        for person in range(case.records)
    ]  # fmt: skip
    clipped = [reference.clip(Norm(0.3), g) for g in gradients]
    np.testing.assert_allclose(mean_gradient(case, theta, deployed, 1), np.mean(gradients, axis=0), rtol=1e-12)
    np.testing.assert_allclose(mean_gradient(case, theta, deployed, 1, Norm(0.3)), np.mean(clipped, axis=0), rtol=1e-12)
    np.testing.assert_allclose(record_gradients(case, theta, Norm(0.3)), clipped, rtol=1e-12)
    np.testing.assert_allclose(gradient_norms(case, theta, deployed, 1)[:, 0], np.linalg.norm(gradients, axis=1))
    step = 1e-6 * np.eye(5)
    slopes = [(mean_loss(case, theta + h, deployed, 1) - mean_loss(case, theta - h, deployed, 1)) / 2e-6 for h in step]
    np.testing.assert_allclose(slopes, np.mean(gradients, axis=0), atol=1e-8)


def test_rates_count_each_person_once():
    x = np.array([[1.0], [1.0], [1.0], [-1.0]])
    case = cs.Problem(x, [1, 1, 1, 1], loss=cs.losses.Logistic(), groups=[0, 0, 0, 1])
    assert cs.metrics.true_positive_rate(case, [1.0]) == pytest.approx(0.5)
    alone = cs.Problem(x, [1, 1, 1, 1], loss=cs.losses.Logistic())
    assert cs.metrics.true_positive_rate(alone, [1.0]) == 0.75


# -- exact sums -------------------------------------------------------------------------------------------------------


@njit
def _complete(loss, theta, grid, total):
    add_penalties(loss, theta, grid, total)


def _units(loss, clip, theta, table, labels, weights, starts, std):
    """The sums of a full batch in units, and one person's bound in units, exactly."""
    people, classes = len(starts) - 1, getattr(loss, "classes", 1)
    rule = cs.Rule("full", STEP, clip, Full(), Gaussian(std))
    case = remote.RemoteProblem(people, theta.size // classes, loss=loss, response=None)
    grid = step_grid(scaling(case, rule, 1), clip.bound(), std, theta.size)
    assert grid.rounding > 0
    job = remote.Job(loss, case.response, NoFeedback(), Full(), people)
    step = remote.Step(0, remote.Models(theta, theta), clip, grid, 0, [])
    sums = remote.no_sums(job, step)
    remote.add_records(job, step, Records(table, labels, weights, starts), sums)
    _complete(loss, theta, grid, sums)
    return sums.v, Fraction(clip.bound()) / people / Fraction(std) * 2 ** (32 - int(grid.shift))


_SIZES = st.sampled_from([0.0, 1e-320, 1e-300, 1e-160, 1e-20, 1e-3, 0.3, 1.0, 7.0, 1e5, 1e20, 1e150, 1e160, 1e300])
_NUMBERS = st.builds(lambda size, part: size * part, _SIZES, st.floats(-1, 1))


_SUMMED = [  # one for each way of summing, as each takes seconds to compile
    (cs.losses.SquaredError(), Norm(1.0), "dense"),
    (cs.losses.SquaredError(l2=50.0), Norm(1e-3), "sparse"),
    (cs.losses.Logistic(l2=0.1), Normalise(1.0), "dense"),
    (cs.losses.Softmax(2, l2=5.0), Norm(1.0), "sparse"),
    (cs.losses.Softmax(2), PerClass(0.5, 2), "dense"),
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_person_exceeds_the_bound(data):
    """Adversarial rows, labels, weights and models: what one person adds is never longer than the clip, exactly."""
    loss, clip, kind = data.draw(st.sampled_from(_SUMMED))
    classes, columns, counts = getattr(loss, "classes", 1), 4, [2, 1, data.draw(st.integers(1, 4))]
    rows = sum(counts)
    theta = np.array(data.draw(st.lists(_NUMBERS, min_size=columns * classes, max_size=columns * classes)))
    x = np.array(data.draw(st.lists(_NUMBERS, min_size=rows * columns, max_size=rows * columns))).reshape(rows, columns)
    binary = getattr(loss, "labels", "real") in ("binary", "class")
    labels = np.array([data.draw(st.sampled_from([0.0, 1.0]) if binary else _NUMBERS) for _ in range(rows)])
    weights = np.array([data.draw(st.sampled_from([1.0, 0.5, 0.0, 1e-3, 1e9])) for _ in range(rows)])
    std, starts = data.draw(st.sampled_from([1e-4, 0.1, 30.0])), np.append(0, np.cumsum(counts))
    table = sparse.csr_array(x) if kind == "sparse" else x
    zeroed = np.where(np.arange(rows) < starts[2], weights, 0.0)
    with np.errstate(all="ignore"):
        whole, bound = _units(loss, clip, theta, table, labels, weights, starts, std)
        without, _ = _units(loss, clip, theta, table, labels, zeroed, starts, std)
    assert np.array_equal(whole, np.rint(whole))
    assert np.abs(whole).max() <= LARGEST
    change = sum(Fraction(int(a) - int(b)) ** 2 for a, b in zip(whole.tolist(), without.tolist(), strict=True))
    assert change <= bound**2


@pytest.mark.parametrize("table", [lambda x: x, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("loss", [cs.losses.SquaredError(), cs.losses.SquaredError(l2=0.1)], ids=["plain", "penalised"])
def test_a_person_who_is_not_finite_adds_nothing(loss, table):
    x = np.vstack((np.eye(3), np.ones((2, 3))))
    rule = cs.Rule("full", STEP, Norm(1.0), Full(), Gaussian(0.1))
    labels, weights = [0.3, 0.2, 0.1, 1e307, 0.5], [1, 1, 1, 1e9, 1.0]
    case = cs.Problem(table(x), labels, loss=loss, weights=weights, groups=[0, 1, 2, 3, 3])
    assert np.isfinite(cs.run(case, rule, 20, seed=0).theta).all()
