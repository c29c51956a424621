"""The estimators make the library's own runs, and follow scikit-learn's conventions."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas
import pytest
from scipy import sparse
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import clipsilon as cs
from clipsilon.estimators import METHODS, PrivateGLM, PrivateLinearRegression, PrivateLogisticRegression
from clipsilon.estimators.defaults import defaults
from clipsilon.privacy.statement import SEEDED

RNG = np.random.default_rng(7)
X = RNG.normal(size=(400, 3))
MARGIN = X @ [2.0, -1.0, 0.5]
BINARY = (MARGIN + 0.5 * RNG.logistic(size=400) > 0).astype(int)
THREE = np.array(["high", "low", "middle"])[np.digitize(MARGIN, [-1.0, 1.0], right=False).clip(0, 2)]
REAL = 10.0 + 3.0 * MARGIN + RNG.normal(size=400)
WITH_ONES = np.column_stack([X, np.ones(400)])


def logistic(**more):
    """Each call makes a new estimator: copies of one would warn about each other."""
    return PrivateLogisticRegression(**{"random_state": 3, "classes": [0, 1]} | more)


def linear(**more):
    return PrivateLinearRegression(**{"random_state": 3, "target_range": (-10, 30)} | more)


def direct(problem, rule, steps, epsilon=1.0, adjacency="zero-out"):
    """Return what `clipsilon.run` releases for the same rule and seed."""
    calibrated = cs.calibrate(rule, epsilon, 1e-5, problem.records, steps, adjacency=adjacency)
    return cs.run(problem, calibrated, steps, seed=3).output[0]


OWN = cs.ClippedDPGD(cs.schedules.Constant(1.5), clip=0.7, noise_std=1.0)


def test_a_fit_is_a_run():
    found = logistic(method=OWN, epochs=20, l2=0.1).fit(X, BINARY)
    theta = direct(cs.Problem(WITH_ONES, BINARY, loss=cs.losses.Logistic(0.1)), OWN, 20)
    np.testing.assert_allclose(np.append(found.coef_[0], found.intercept_), theta, rtol=1e-12)
    assert found.coef_.shape == (1, 3)
    assert found.intercept_.shape == (1,)
    assert found.n_iter_ == 20
    np.testing.assert_array_equal(found.theta_, theta)


def test_a_multi_class_fit_is_a_softmax_run():
    found = PrivateLogisticRegression(method=OWN, epochs=20, random_state=3, classes=np.unique(THREE)).fit(X, THREE)
    labels = np.searchsorted(["high", "low", "middle"], THREE)
    theta = direct(cs.Problem(WITH_ONES, labels, loss=cs.losses.Softmax(3)), OWN, 20)
    np.testing.assert_allclose(np.column_stack([found.coef_, found.intercept_]), theta.reshape(3, 4), rtol=1e-12)
    assert list(found.classes_) == ["high", "low", "middle"]
    assert found.score(X, THREE) > 0.6  # 0.75 ± 0.03 over seeds; guessing gives 0.33


def test_a_regression_is_a_run_on_targets_of_unit_order():
    found = linear(method=OWN, epochs=20, loss="huber", l2=0.1).fit(X, REAL)
    theta = direct(cs.Problem(WITH_ONES, (REAL - 10) / 10, loss=cs.losses.Huber(l2=0.1)), OWN, 20)
    np.testing.assert_allclose(found.coef_, 10 * theta[:3], rtol=1e-12)
    np.testing.assert_allclose(found.intercept_, 10 + 10 * theta[3], rtol=1e-12)
    np.testing.assert_allclose(found.predict(X), X @ found.coef_ + found.intercept_, rtol=1e-12)


@pytest.mark.parametrize("loss", [cs.losses.Savage(), cs.losses.Absolute(), cs.losses.Huber(l2=0.1)])
def test_a_glm_is_a_run_of_its_loss(loss):
    labels = BINARY if cs.losses.base.label_kind(loss) == "binary" else REAL / 10
    known = {"classes": [0, 1]} if labels is BINARY else {}
    found = PrivateGLM(loss, method=OWN, epochs=20, random_state=3, fit_intercept=False, **known).fit(X, labels)
    theta = direct(cs.Problem(X, labels, loss=loss), OWN, 20)
    np.testing.assert_allclose(found.coef_.ravel(), theta, rtol=1e-12)
    assert not np.any(found.intercept_)


def test_the_default_is_the_default_rule():
    settings = defaults(400, 4, 1.0, 1e-5)
    found = logistic().fit(X, BINARY)
    rule = replace(cs.ClippedDPGD(settings.step, settings.clip, 1.0), output=settings.output)
    theta = direct(cs.Problem(WITH_ONES, BINARY, loss=cs.losses.Logistic()), rule, settings.steps)
    np.testing.assert_allclose(found.theta_, theta, rtol=1e-12)


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].is_local])
def test_every_method_fits_within_its_budget(method):
    model = logistic(method=method, epsilon=3.0, epochs=5).fit(X, BINARY)
    assert 0.98 * 3.0 <= model.statement_.nominal <= 3.0
    assert (model.statement_.adjacency, model.statement_.records) == ("zero-out", 400)
    assert model.statement_.steps == model.n_iter_ == 5
    assert np.isfinite(model.coef_).all()
    again = pickle.loads(pickle.dumps(model))
    assert again.statement_.mended.epsilon(1e-6) == model.statement_.mended.epsilon(1e-6)


@pytest.mark.parametrize(
    ("method", "loss"), [("ldpsgd", cs.losses.MallowsLogistic()), ("ldpasgd", cs.losses.HuberRegression())]
)
def test_local_methods_are_for_losses_that_know_their_sensitivity(method, loss):
    binary = isinstance(loss, cs.losses.MallowsLogistic)
    model = PrivateGLM(loss, epsilon=5.0, method=method, random_state=0, adjacency="replace-one")
    model.set_params(classes=[0, 1] if binary else None).fit(X, BINARY if binary else REAL / 10)
    assert 0.98 * 5.0 <= model.statement_.nominal <= 5.0
    assert model.n_iter_ == 400  # one pass
    assert model.coef_.size == 3
    assert model.theta_.size == (4 if binary else 5)
    with pytest.raises(ValueError, match="loss must state its sensitivity"):
        logistic(method=method, adjacency="replace-one").fit(X, BINARY)
    with pytest.raises(ValueError, match="adjacency must be 'replace-one' for local noise"):
        clone(model).set_params(adjacency="zero-out").fit(X, BINARY)


def test_probabilities():
    two = logistic().fit(X, BINARY)
    margin = X @ two.coef_[0] + two.intercept_[0]
    np.testing.assert_allclose(two.decision_function(X), margin, rtol=1e-12)
    np.testing.assert_allclose(two.predict_proba(X)[:, 1], 1 / (1 + np.exp(-margin)), rtol=1e-12)
    three = PrivateLogisticRegression(random_state=0, classes=np.unique(THREE)).fit(X, THREE)
    odds = np.exp(X @ three.coef_.T + three.intercept_)
    np.testing.assert_allclose(three.predict_proba(X), odds / odds.sum(axis=1, keepdims=True), rtol=1e-10)
    assert (three.predict(X) == three.classes_[odds.argmax(axis=1)]).all()


def test_scores_are_accuracy_and_r_squared():
    two, line = logistic().fit(X, BINARY), linear().fit(X, REAL)
    assert two.score(X, BINARY) == np.mean(two.predict(X) == BINARY) > 0.8
    rest = REAL - line.predict(X)
    assert line.score(X, REAL) == pytest.approx(1 - rest @ rest / (400 * REAL.var()))
    assert line.score(X, REAL) > 0.7
    real, binary = PrivateGLM(random_state=0), PrivateGLM(cs.losses.Savage(), random_state=0, classes=[0, 1])
    assert real.fit(X, REAL / 10).score(X, REAL / 10) < 1
    assert binary.fit(X, BINARY).score(X, BINARY) == np.mean(binary.predict(X) == BINARY)
    assert is_regressor(real)
    assert is_classifier(binary)
    assert not hasattr(real, "decision_function")
    np.testing.assert_array_equal(binary.decision_function(X) > 0, binary.predict(X) == 1)


def test_the_same_seed_gives_the_same_model_and_none_never_does():
    first, second = (logistic().fit(X, BINARY).theta_ for _ in range(2))
    np.testing.assert_array_equal(first, second)
    loose = [logistic(random_state=None).fit(X, BINARY).theta_ for _ in range(2)]
    assert np.abs(loose[0] - loose[1]).min() > 0
    drawn = [logistic(random_state=np.random.RandomState(5)).fit(X, BINARY).theta_ for _ in range(2)]
    np.testing.assert_array_equal(*drawn)
    assert any(drawn[0] != first)


def test_data_frames():
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    model = logistic().fit(frame, pandas.Series(BINARY, index=np.arange(400) + 9))
    np.testing.assert_array_equal(model.theta_, logistic().fit(X, BINARY).theta_)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert model.n_features_in_ == 3
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "c"]])


def test_sparse_matrices():
    thin = X * (RNG.random(X.shape) < 0.3)
    for make, y in ((logistic, BINARY), (linear, REAL)):
        dense = make().fit(thin, y)
        for kind in (sparse.csr_matrix, sparse.csc_array):
            model = make().fit(kind(thin), y)
            np.testing.assert_allclose(model.theta_, dense.theta_, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(model.predict(kind(thin)), dense.predict(thin), rtol=1e-9)


def test_float32():
    model = logistic().fit(X.astype(np.float32), BINARY)
    np.testing.assert_allclose(model.theta_, logistic().fit(X, BINARY).theta_, rtol=1e-3)


def test_pipelines():
    doubled = make_pipeline(FunctionTransformer(lambda table: 2 * table), logistic()).fit(X, BINARY)
    np.testing.assert_array_equal(doubled[-1].theta_, logistic().fit(2 * X, BINARY).theta_)
    assert doubled.predict_proba(X).shape == (400, 2)
    assert doubled[-1].statement_.nominal <= 1.0


def test_cloning_and_pickling():
    model = PrivateLogisticRegression(0.5, method=OWN, classes=[0, 1], random_state=3, class_weight={0: 2.0}, epochs=3)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy is not model
    assert not hasattr(copy, "theta_")
    model.set_params(class_weight=None).fit(X, BINARY)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert str(again.statement_) == str(model.statement_)
    assert not hasattr(clone(model), "theta_")
    assert "classes=[0, 1]" in repr(model)


def test_weights_are_the_problems_weights():
    weights = RNG.uniform(0, 3, size=400)
    found = logistic(method=OWN, epochs=20).fit(X, BINARY, sample_weight=weights)
    problem = cs.Problem(WITH_ONES, BINARY, loss=cs.losses.Logistic(), weights=weights)
    np.testing.assert_allclose(found.theta_, direct(problem, OWN, 20), rtol=1e-12)
    ones, none = (logistic(method=OWN, epochs=20).fit(X, BINARY, weights) for weights in (np.ones(400), None))
    np.testing.assert_array_equal(ones.theta_, none.theta_)
    with pytest.raises(ValueError, match="sample_weight"):
        ones.fit(X, BINARY, sample_weight=-weights)


def test_class_weights_multiply_the_records_weights():
    weights = RNG.uniform(0, 3, size=400)
    model = logistic(class_weight={1: 2.5}, clip=1.0).fit(X, BINARY, weights)
    other = logistic(clip=1.0).fit(X, BINARY, np.where(BINARY == 1, 2.5, 1.0) * weights)
    np.testing.assert_array_equal(model.theta_, other.theta_)


def test_records_that_react():
    model = PrivateLogisticRegression(
        classes=[0, 1],
        method=OWN,
        epochs=20,
        random_state=3,
        fit_intercept=False,
        response=cs.responses.BestResponse(0.5),
    ).fit(X, BINARY)
    problem = cs.Problem(X, BINARY, loss=cs.losses.Logistic(), response=cs.responses.BestResponse(0.5))
    np.testing.assert_allclose(model.theta_, direct(problem, OWN, 20), rtol=1e-12)
    still = logistic(method=OWN, epochs=20, fit_intercept=False).fit(X, BINARY)
    assert any(model.theta_ != still.theta_)
    with_intercept = logistic(method=OWN, epochs=20, response=cs.responses.BestResponse(0.5)).fit(X, BINARY)
    fixed = cs.responses.FixedIntercept(cs.responses.BestResponse(0.5))
    problem = cs.Problem(WITH_ONES, BINARY, loss=cs.losses.Logistic(), response=fixed)
    np.testing.assert_allclose(with_intercept.theta_, direct(problem, OWN, 20), rtol=1e-12)


def test_statements_say_whether_there_was_a_seed():
    generic = "A seeded run is not for release"
    seeded, fresh = (logistic(method=OWN, epochs=20, random_state=state) for state in (3, None))
    for model in (seeded, fresh):
        model.fit(X[:150], BINARY[:150])
        assert generic not in str(model.statement_)
    assert seeded.statement_.reasons[0] == SEEDED
    assert SEEDED not in fresh.statement_.reasons
    assert (seeded.statement_.certified, seeded.statement_.nominal) == (np.inf, fresh.statement_.certified)
    assert fresh.statement_.certified == fresh.statement_.nominal <= 1.0
    for first, second in ((seeded, None), (fresh, 3)):  # one call with a seed is enough to close the statement
        first.set_params(random_state=second).partial_fit(X[150:], BINARY[150:])
        assert first.statement_.reasons.count(SEEDED) == 1
        assert first.statement_.certified == np.inf
        assert 0.98 <= first.statement_.nominal <= 1.0
    assert generic in str(cs.account(OWN, 100, 20, 1e-5))  # a rule's statement cannot know


def test_partial_fit_continues_with_other_peoples_records():
    model = logistic(method=OWN, epochs=20)
    model.partial_fit(X[:150], BINARY[:150])
    first = model.theta_
    np.testing.assert_array_equal(first, logistic(method=OWN, epochs=20).fit(X[:150], BINARY[:150]).theta_)
    alone = model.statement_
    model.partial_fit(X[150:], BINARY[150:])
    problem = cs.Problem(WITH_ONES[150:], BINARY[150:], loss=cs.losses.Logistic())
    calibrated = cs.calibrate(OWN, 1.0, 1e-5, 250, 20, adjacency="zero-out")
    seed = int(np.random.SeedSequence((3, 20)).generate_state(1)[0])  # other noise than in the first call
    expected = cs.run(problem, calibrated, 20, start=first, seed=seed).output[0]
    np.testing.assert_allclose(model.theta_, expected, rtol=1e-12)
    assert model.n_iter_ == 40
    assert alone.nominal <= model.statement_.nominal <= 1.0
    assert "parallel composition" in model.statement_.reasons[-1]
    line = linear().partial_fit(X[:150], REAL[:150]).partial_fit(X[150:], REAL[150:])
    assert line.target_range_ == (-10.0, 30.0)
    glm = PrivateGLM(random_state=0).partial_fit(X[:150], REAL[:150] / 10).partial_fit(X[150:], REAL[150:] / 10)
    assert glm.coef_.shape == (3,)


def test_partial_fit_notes_that_a_record_must_be_in_one_call():
    model = logistic(method=OWN, epochs=5, random_state=None)
    for rows in (slice(0, 200), slice(200, 400)):
        model.partial_fit(X[rows], BINARY[rows])
    assert "a record must be in one call only" in model.statement_.notes[-1]
    assert model.statement_.certified <= 1.0
    assert model.statement_.records == 200  # of one call


def test_partial_fit_remembers_what_was_learnt_at_the_first_call():
    model = PrivateLinearRegression(random_state=0)
    with pytest.warns(cs.PrivacyWarning, match="range of the targets") as caught:
        model.partial_fit(X[:10], REAL[:10])
    assert caught[0].filename == __file__  # it points to the caller's line
    model.partial_fit(X[10:], REAL[10:])
    assert sum("range of the targets" in reason for reason in model.statement_.reasons) == 1
    assert model.statement_.certified == np.inf


def test_learnt_classes_warn_and_are_stated():
    model = PrivateLogisticRegression(random_state=0)
    with pytest.warns(cs.PrivacyWarning, match="The classes were learnt from y without budget"):
        model.fit(X, THREE)
    assert any("classes were learnt" in reason for reason in model.statement_.reasons)
    known = PrivateLogisticRegression(random_state=0, classes=np.unique(THREE)).fit(X, THREE)
    assert not any("learnt" in reason for reason in known.statement_.reasons)
    np.testing.assert_array_equal(known.theta_, model.theta_)


@pytest.mark.parametrize(
    ("make", "y", "fault"),
    [
        (lambda: PrivateLogisticRegression(), THREE, "The classes were learnt"),
        (lambda: PrivateGLM(cs.losses.Logistic()), BINARY, "The classes were learnt"),
        (lambda: PrivateLogisticRegression(classes=[0, 1], class_weight="balanced"), BINARY, "class_weight='balanced'"),
        (lambda: PrivateLinearRegression(), REAL, "The range of the targets"),
    ],
)
def test_what_was_learnt_without_budget_certifies_nothing(make, y, fault):
    """That somebody has a rare label, or an extreme target, can be read off the model."""
    with pytest.warns(cs.PrivacyWarning, match=fault):
        statement = make().fit(X, y).statement_
    assert statement.certified == statement.epsilon(0.1) == np.inf
    assert statement.delta_at(10.0) == 1.0
    assert 0.98 <= statement.nominal <= 1.0
    assert statement.reasons[0].startswith(fault)
    assert statement.reasons[:1] == statement.faults == statement.notes
    assert statement.reasons.count(statement.reasons[0]) == 1


@pytest.mark.parametrize("state", [0, 7, np.random.RandomState(3)])
def test_a_seed_warns_and_certifies_nothing(state):
    with pytest.warns(cs.PrivacyWarning, match="^Seeded: not for release; .* Leave random_state at None") as caught:
        model = logistic(random_state=state).fit(X, BINARY)
    assert caught[0].filename == __file__
    assert model.statement_.certified == np.inf
    assert 0.98 <= model.statement_.nominal <= 1.0


def test_a_delta_that_permits_publishing_a_record_warns():
    fit = logistic(delta=1 / 400, random_state=None)
    with pytest.warns(
        cs.PrivacyWarning, match=r"^δ = 0\.0025 is at least 1 in 400 records, .* well below 0\.0025\.$"
    ) as caught:
        fit.fit(X, BINARY)
    assert caught[0].filename == __file__
    logistic(delta=0.99 / 400, random_state=None).fit(X, BINARY)  # does not warn


def test_partial_fit_on_rows_that_were_seen_warns():
    def seen(model, rows):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.partial_fit(X[rows], BINARY[rows])
        return [str(warning.message).split(".")[0] for warning in caught if "earlier calls" in str(warning.message)]

    model = logistic(random_state=None).fit(X[:100], BINARY[:100])
    assert seen(model, slice(100, 200)) == []
    assert seen(model, slice(150, 300)) == ["partial_fit: 50 of 150 rows equal rows of earlier calls"]
    assert seen(model, slice(0, 300)) == ["partial_fit: 300 of 300 rows equal rows of earlier calls"]
    with pytest.warns(cs.PrivacyWarning, match="stand for 2 fits"):
        model.fit(X[:100], BINARY[:100])  # a fit of its own, which forgets
    assert seen(model, slice(100, 200)) == []
    assert not any("earlier calls" in reason for reason in model.statement_.reasons)  # which may be public
    again = pickle.loads(pickle.dumps(model))
    assert not any("seen" in name or "digest" in name for name in vars(again))
    assert seen(again, slice(0, 100)) == []  # what was pickled holds no digests of rows


def test_rows_are_recognised_in_any_form():
    import dask.array as da

    thin = np.where(np.abs(X) < 0.5, 0.0, X).astype(np.float32)
    for first, second in ((thin, sparse.csr_matrix(thin.astype(np.float64))), (sparse.csr_matrix(thin), thin)):
        model = logistic(random_state=None).fit(first, BINARY)
        with pytest.warns(cs.PrivacyWarning, match=r"partial_fit: \d+ of 400 rows equal"):
            model.partial_fit(second, BINARY)
    model = logistic(random_state=None, batch=200, epochs=2).fit(X, BINARY)
    with pytest.warns(cs.PrivacyWarning, match="partial_fit: 400 of 400 rows equal"):
        model.partial_fit(da.from_array(X, chunks=(150, 3)), da.from_array(BINARY, chunks=150))


def test_equal_rows_of_few_values_are_no_sign_of_equal_people():
    few = np.random.default_rng(5).integers(0, 2, (400, 3)).astype(float)
    model = logistic(random_state=None).partial_fit(few[:200], BINARY[:200])
    model.partial_fit(few[200:], BINARY[200:])  # does not warn


def test_balanced_class_weights_warn_and_are_stated():
    model = logistic(class_weight="balanced")
    with pytest.warns(cs.PrivacyWarning, match="frequencies of the classes without budget"):
        model.fit(X, BINARY)
    assert any("frequencies" in reason for reason in model.statement_.reasons)
    share = BINARY.mean()
    told = logistic(class_weight={0: 0.5 / (1 - share), 1: 0.5 / share}).fit(X, BINARY)
    np.testing.assert_allclose(model.theta_, told.theta_, rtol=1e-9)


def test_a_learnt_target_range_warns_and_is_stated():
    model = PrivateLinearRegression(random_state=0)
    with pytest.warns(cs.PrivacyWarning, match="The range of the targets was learnt from y without budget"):
        model.fit(X, REAL)
    assert model.target_range_ == pytest.approx((REAL.mean() - 2 * REAL.std(), REAL.mean() + 2 * REAL.std()))
    assert "range of the targets" in model.statement_.reasons[0]


def test_the_units_of_the_targets_do_not_matter():
    model = linear().fit(X, REAL)
    scaled = linear(target_range=(-10_000, 30_000)).fit(X, 1000 * REAL)
    np.testing.assert_allclose(scaled.predict(X), 1000 * model.predict(X), rtol=1e-9)


def test_a_class_nobody_has_is_no_error():
    model = logistic(classes=[0, 1, 2]).fit(X, BINARY)
    assert list(model.classes_) == [0, 1, 2]
    assert logistic().fit(X, np.zeros(400)).predict(X).shape == (400,)


WRONG = {
    "epsilon": (logistic, {"epsilon": 0.0}, "epsilon must be a number above 0, got 0.0"),
    "delta": (logistic, {"delta": 1.0}, "delta must be a number above 0 and below 1"),
    "method": (logistic, {"method": "sgd"}, "method must be one of 'dpsgd', .*, got 'sgd'"),
    "clip": (logistic, {"clip": -1.0}, "clip must be a number above 0, got -1.0"),
    "batch": (logistic, {"batch": 0}, "batch must be a whole number of at least 1, got 0"),
    "large batch": (logistic, {"batch": 500}, "batch must be at most the number of records \\(400\\), got 500"),
    "epochs": (logistic, {"epochs": 0}, "epochs must be a number above 0, got 0"),
    "step": (logistic, {"step": "small"}, "step must be a finite number, got 'small'"),
    "l2": (logistic, {"l2": -1}, "l2 must be a number of at least 0, got -1"),
    "adjacency": (logistic, {"adjacency": "swap"}, "adjacency must be one of"),
    "add-remove": (logistic, {"adjacency": "add-remove", "method": "dpgd"}, "adjacency must be 'replace-one' or"),
    "class_weight": (logistic, {"class_weight": "heavy"}, "class_weight must be one of 'balanced', got 'heavy'"),
    "one class": (logistic, {"classes": [1]}, "classes must be a list of two or more labels of one kind"),
    "random_state": (logistic, {"random_state": -1}, "random_state must be a whole number of at least 0, got -1"),
    "response": (logistic, {"response": 3, "fit_intercept": False}, "response"),
    "clip of auto": (logistic, {"method": "auto-dice", "clip": 1.0}, "clip must be left out for method 'auto-dice'"),
    "batch of dpgd": (logistic, {"method": "dpgd", "batch": 9}, "batch must be left out for method 'dpgd'"),
    "epochs of ldp": (logistic, {"method": "ldpsgd", "epochs": 2}, "epochs must be left out for method 'ldpsgd'"),
    "clip of a rule": (logistic, {"method": OWN, "clip": 2.0}, "clip must be left out where method is a Rule"),
    "loss": (linear, {"loss": "cubic"}, "loss must be one of 'squared', 'huber', got 'cubic'"),
    "range": (linear, {"target_range": (3, 1)}, "target_range must be a low and a high number, got \\(3, 1\\)"),
    "no range": (linear, {"target_range": "wide"}, "target_range must hold numbers only"),
    "glm loss": (PrivateGLM, {"loss": cs.losses.Quadratic()}, "loss must be a loss of the margin"),
    "glm name": (PrivateGLM, {"loss": "logistic"}, "loss must be a loss of the margin .*, got 'logistic'"),
    "glm classes": (PrivateGLM, {"classes": [0, 1]}, "classes must be left out for a loss of real targets"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_settings_get_one_sentence(case):
    make, settings, message = WRONG[case]
    with pytest.raises((ValueError, TypeError), match=message):
        make(**settings).fit(X, BINARY)


def test_wrong_data_gets_one_sentence():
    with pytest.raises(ValueError, match="y must hold the classes \\[0, 1\\] only, got 'high'"):
        logistic().fit(X, THREE)
    with pytest.raises(ValueError, match="contains NaN"):
        logistic().fit(np.where(X > 2, np.nan, X), BINARY)
    with pytest.raises(ValueError, match="classes must be passed on the first call to partial_fit"):
        PrivateLogisticRegression().partial_fit(X, BINARY)
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        PrivateGLM(cs.losses.Savage(), classes=[0, 1, 2]).fit(X, BINARY)
    with pytest.raises(NotFittedError):
        logistic().predict(X)
    with pytest.raises(ValueError, match="X has 2 features"):
        logistic().fit(X, BINARY).predict(X[:, :2])


def rare(seed=0, records=8_000):
    """Draw records of which about one in eight is positive."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(records, 4))
    return features, (rng.random(records) < 1 / (1 + np.exp(2.4 - features @ [1.0, -0.5, 0.0, 0.5]))).astype(int)


def test_weights_of_classes_count_with_the_default_clip():
    """Twenty seeds gave fractions within 0.05 of scikit-learn's; without weights hardly any prediction is positive."""
    features, labels = rare()
    weights = {0: 1, 1: 8}
    theirs = LogisticRegression(class_weight=weights).fit(features, labels).predict(features).mean()
    ours = logistic(class_weight=weights).fit(features, labels).predict(features).mean()
    each = logistic().fit(features, labels, np.where(labels, 1.0, 1 / 8)).predict(features).mean()
    assert theirs > 0.3
    assert abs(ours - theirs) < 0.1
    assert abs(each - theirs) < 0.1
    assert logistic().fit(features, labels).predict(features).mean() < 0.05


def test_partial_fit_keeps_a_length_that_it_cannot_find():
    features, labels = rare(records=15_000)
    model = logistic().partial_fit(features, labels)
    before = np.linalg.norm(model.theta_)
    with pytest.warns(cs.PrivacyWarning, match="partial_fit: 120 of 120 rows equal rows of earlier calls"):
        model.partial_fit(features[:120], labels[:120])
    assert np.linalg.norm(model.theta_) == pytest.approx(before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0.05}, "delta must stay what it was"),
        ({"adjacency": "replace-one"}, "adjacency must stay what it was"),
        ({"fit_intercept": False}, "fit_intercept and loss must stay"),
    ],
)
def test_partial_fit_keeps_its_terms(change, message):
    model = logistic(method=OWN, epochs=5).partial_fit(X[:150], BINARY[:150]).set_params(**change)
    before = model.theta_.copy()
    with pytest.raises(ValueError, match=message):
        model.partial_fit(X[150:], BINARY[150:])
    np.testing.assert_array_equal(model.theta_, before)
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        model.set_params(**dict.fromkeys(change, getattr(logistic(), next(iter(change))))).partial_fit(
            X[150:], BINARY[150:], classes=[0, 7]
        )


def test_partial_fit_keeps_to_a_loss_of_its_targets():
    glm = PrivateGLM(cs.losses.Logistic(), classes=[0, 1], method=OWN, epochs=5, random_state=3).fit(
        X[:150], BINARY[:150]
    )
    with pytest.raises(ValueError, match=r"^loss must stay one for two classes .*, got SquaredError\(l2=0\.0\)\.$"):
        glm.set_params(loss=cs.losses.SquaredError(), classes=None).partial_fit(X[150:], REAL[150:])
    line = PrivateGLM(method=OWN, epochs=5, random_state=3).fit(X[:150], REAL[:150])
    with pytest.raises(ValueError, match=r"^loss must stay one for real targets .*, got Logistic\("):
        line.set_params(loss=cs.losses.Logistic()).partial_fit(X[150:], BINARY[150:], classes=[0, 1])


def test_partial_fit_states_the_worse_of_two_curves():
    """The larger ε at one δ may be the smaller at another."""
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(22_000, 2)), rng.integers(0, 2, 22_000)
    model = logistic().partial_fit(features[:2_000], labels[:2_000])
    alone = [model.statement_, logistic().fit(features[2_000:], labels[2_000:]).statement_]
    model.partial_fit(features[2_000:], labels[2_000:])
    for delta in (1e-5, 1e-12):
        assert model.statement_.mended.epsilon(delta) == max(one.mended.epsilon(delta) for one in alone)


def test_a_refused_fit_leaves_the_model_as_it_was():
    model = logistic(method=OWN, epochs=5).fit(X, BINARY)
    with pytest.raises(ValueError, match="step must be"):
        model.set_params(classes=[5, 6], step=-1.0, method="dpsgd").fit(X, BINARY + 5)
    assert model.classes_.tolist() == [0, 1]
    assert set(model.predict(X)) == {0, 1}


def refused_with_a_warning(model, y):
    with warnings.catch_warnings():
        warnings.simplefilter("error", cs.PrivacyWarning)
        with pytest.raises(cs.PrivacyWarning, match="learnt from y without budget"):
            model.fit(X[:, :2], y)


def test_a_warning_that_is_an_error_leaves_the_model_as_it_was():
    """What was learnt without budget must not remain, because a later call would treat it as known."""
    model = logistic(method=OWN, epochs=5).fit(X, BINARY)
    refused_with_a_warning(model.set_params(classes=None, random_state=None), np.where(BINARY, "b", "a"))
    assert (model.n_features_in_, model.classes_.tolist()) == (3, [0, 1])
    assert model.coef_.shape == (1, 3)
    line = linear(method=OWN, epochs=5).fit(X, REAL)
    refused_with_a_warning(line.set_params(target_range=None, random_state=None), 1000 * REAL)
    assert (line.n_features_in_, line.target_range_) == (3, (-10.0, 30.0))
    fresh = PrivateLinearRegression(method=OWN, epochs=5)
    refused_with_a_warning(fresh, REAL)
    assert not hasattr(fresh, "target_range_")


def test_an_endless_row_does_not_stop_a_fit():
    features, labels = rare(records=3_000)
    features[0] = 1.5e308
    for table in (features, sparse.csr_array(features)):
        assert np.isfinite(logistic(epsilon=3.0).fit(table, labels).theta_).all()


def test_an_interrupted_fit_counts(monkeypatch):
    model = logistic(method=OWN, epochs=5)

    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("clipsilon.estimators.training.run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, BINARY)
    with pytest.warns(cs.PrivacyWarning, match="2 fits"):
        model.fit(X, BINARY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_jobs": "all"}, "n_jobs must be None or a whole number other than 0, got 'all'"),
        ({"n_jobs": 0}, "n_jobs must be None or a whole number other than 0, got 0"),
        ({"fit_intercept": "no"}, "fit_intercept must be True or False, got 'no'"),
        ({"classes": 2}, "classes must be a list of two or more labels of one kind, got 2"),
        ({"classes": "ab"}, "classes must be a list of two or more"),
        ({"classes": [0]}, "classes must be a list of two or more"),
        ({"classes": [0, "a"]}, "classes must be a list of two or more"),
        ({"classes": [[0, 1], [1, 2]]}, "classes must be a list of two or more"),
        ({"class_weight": {0: "a"}}, r"class_weight\[0\] must be a finite number, got 'a'"),
        ({"class_weight": {0: -1.0}}, r"class_weight\[0\] must be a number of at least 0, got -1.0"),
        ({"class_weight": {0: 1.0, 5: 2.0}}, "class_weight must be for the classes"),
        ({"class_weight": {0: 0, 1: 0}}, "class_weight must leave some class a weight above 0"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ValueError, match=message):
        logistic(**settings).fit(X, BINARY)


def test_targets_that_are_words():
    with pytest.raises(ValueError, match="y must hold numbers only"):
        linear().fit(X, np.where(BINARY, "yes", "no"))


def test_weights_are_said_to_be_of_one_record_each():
    X, y = np.random.default_rng(0).normal(size=(500, 2)), np.arange(500) % 2
    for weights, expected in ((None, 0), (np.ones(500), 1)):
        model = PrivateLogisticRegression(classes=[0, 1])
        reasons = model.fit(X, y, sample_weight=weights).statement_.reasons
        assert sum(reason.startswith("sample_weight: the weight of a record") for reason in reasons) == expected
