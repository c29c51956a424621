"""The privacy of several steps together."""

import math
import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from dp_accounting.pld import privacy_loss_distribution
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, PolynomialFeatures, StandardScaler

import clipsilon as cs
from clipsilon.estimators import PrivacyWarning, PrivateLogisticRegression, PrivateScaler, total_privacy
from clipsilon.privacy.accounting import gaussian, profiles
from clipsilon.privacy.certificate import Certificate
from clipsilon.privacy.statement import SEEDED, fail_closed

X = np.random.default_rng(0).standard_normal((5000, 4))


class Sampled(BaseEstimator):
    """A step whose statement is for a subsampled run, and not Gaussian."""

    def __init__(self, adjacency="zero-out"):
        self.adjacency = adjacency

    def fit(self, X, y=None):
        rule = cs.DPSGD(cs.schedules.Constant(0.5), clip=1.0, noise_std=0.01, batch=250)
        self.statement_ = cs.account(rule, records=5000, steps=50, delta=1e-5, adjacency=self.adjacency)
        return self


def scaler(epsilon, **named):
    return PrivateScaler(epsilon, **named)


def warnings_of(action):
    """Return the result of an action and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = action()
    return result, [str(warning.message) for warning in caught]


def test_gaussian_steps_compose_exactly():
    steps = [scaler(1.0).fit(X), scaler(2.0).fit(X), scaler(0.5).fit(X)]
    total = total_privacy(steps)
    mus = [step.statement_.gaussian_mu for step in steps]
    composed = privacy_loss_distribution.from_gaussian_mechanism(1 / mus[0], value_discretization_interval=1e-3)
    for mu in mus[1:]:
        composed = composed.compose(
            privacy_loss_distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-3)
        )
    assert total.delta == pytest.approx(3e-6)
    assert total.epsilon == pytest.approx(composed.get_epsilon_for_delta(3e-6), rel=2e-3)
    assert total.epsilon < 3.5
    assert total.adjacency == "zero-out"


def test_one_step_spends_what_it_states():
    step = scaler(1.0).fit(X)
    assert total_privacy([step]).epsilon == step.statement_.certified
    assert total_privacy(step, delta=1e-3).epsilon == step.statement_.epsilon(1e-3)


def test_different_mechanisms_compose_on_one_curve():
    pipeline = make_pipeline(scaler(1.0), Sampled()).fit(X)
    first, second = (step.statement_ for step in pipeline)
    total = total_privacy(pipeline)
    assert total.delta == pytest.approx(1.1e-5)
    one = privacy_loss_distribution.from_gaussian_mechanism(1 / first.gaussian_mu, value_discretization_interval=1e-3)
    other = privacy_loss_distribution.from_gaussian_mechanism(
        0.01 * 250, value_discretization_interval=1e-4, sampling_prob=250 / 5000
    )
    other = other.self_compose(50)
    fine = privacy_loss_distribution.from_gaussian_mechanism(1 / first.gaussian_mu, value_discretization_interval=1e-4)
    expected = other.compose(fine).get_epsilon_for_delta(1.1e-5)
    assert one.get_epsilon_for_delta(1e-6) == pytest.approx(first.certified, rel=1e-2)
    assert total.epsilon == pytest.approx(expected, rel=5e-3)
    assert total.epsilon < 0.9 * (first.certified + second.certified)
    assert total_privacy(pipeline, delta=1.1e-6).epsilon > total.epsilon
    assert [reason.split(":")[0] for reason in total.reasons] == ["PrivateScaler", "DPSGD", "Composed"]


def test_bounds_cost_nothing():
    assert total_privacy(PrivateScaler(None, bounds=(-1, 1)).fit(X)).epsilon == 0.0
    bounded = make_pipeline(PrivateScaler(None, bounds=(-1, 1)), scaler(1.0)).fit(X)
    assert total_privacy(bounded, delta=1e-6).epsilon == pytest.approx(1.0)


def test_steps_within_steps_count():
    columns = ColumnTransformer([("a", scaler(1.0), [0, 1]), ("b", scaler(2.0), [2]), ("c", "passthrough", [3])])
    union = FeatureUnion([("d", scaler(0.5)), ("e", "passthrough")])
    pipeline = make_pipeline(columns, union).fit(X)
    mus = [PrivateScaler(epsilon).fit(X).statement_.gaussian_mu for epsilon in (1.0, 2.0, 0.5)]
    level = total_privacy(pipeline).delta
    assert level == pytest.approx(3e-6)
    assert total_privacy(pipeline).epsilon == pytest.approx(gaussian.epsilon(math.hypot(*mus), level))


def test_what_was_learnt_without_budget_is_named_and_nothing_certified():
    pipeline = make_pipeline(StandardScaler(), scaler(1.0)).fit(X)
    with pytest.warns(PrivacyWarning, match="without budget: StandardScaler"):
        total = total_privacy(pipeline)
    assert total.epsilon == math.inf
    assert total.nominal == pytest.approx(1.0)
    assert total.faults == total.reasons[:1] == ("Learnt from the data without budget: StandardScaler.",)
    assert str(total).startswith("all steps: ε = ∞ at δ = 1e-06, nominal: ε = 1 with this mended\n")
    assert total.to_dict()["epsilon"] is None
    assert total_privacy(pipeline[1:]).epsilon == pytest.approx(1.0)  # as if the first had seen public data


def test_steps_that_learn_nothing_need_no_statement():
    imputer = SimpleImputer(strategy="constant", fill_value=0.0, keep_empty_features=True)
    pipeline = make_pipeline(imputer, FunctionTransformer(np.tanh), PolynomialFeatures(), "passthrough", scaler(20.0))
    assert total_privacy(pipeline.fit(X)).epsilon == pytest.approx(20.0)
    codes = OneHotEncoder(categories=[[0, 1, 2]] * 4, handle_unknown="ignore", sparse_output=False)
    pipeline = make_pipeline(FunctionTransformer(np.round), codes, scaler(20.0)).fit(np.abs(X))
    assert total_privacy(pipeline).epsilon == pytest.approx(20.0)


def test_a_step_that_mixes_rows_certifies_nothing():
    """One record moves all others: no clip of the step after it bounds that."""
    mixing = FunctionTransformer(lambda table: table - table.mean(axis=0))
    pipeline = make_pipeline(mixing, scaler(1.0)).fit(X)
    with pytest.warns(PrivacyWarning, match="FunctionTransformer looks at several rows at a time"):
        total = total_privacy(pipeline)
    assert (total.epsilon, total.nominal) == (math.inf, pytest.approx(1.0))


def test_columns_that_a_function_of_the_records_chose_certify_nothing():
    """Which columns there are, and their types, may hang on one record; names may not."""
    frame = pd.DataFrame(X, columns=list("abcd"))

    def total(columns):
        return total_privacy(ColumnTransformer([("chosen", scaler(1.0), columns)]).fit(frame))

    with pytest.warns(PrivacyWarning, match="the columns of 'chosen' were chosen by a function of the records"):
        chosen = total(lambda table: table.columns[table.mean() > -1])
    assert (chosen.epsilon, chosen.nominal) == (math.inf, pytest.approx(1.0))
    for by_type in (make_column_selector(dtype_include=float), make_column_selector("[a-c]", dtype_exclude=object)):
        with pytest.warns(PrivacyWarning, match="the columns of 'chosen' were chosen by a function of the records"):
            assert total(by_type).epsilon == math.inf
    assert total(make_column_selector(pattern="[a-c]")).epsilon == pytest.approx(1.0)


def test_estimators_inside_of_steps_count():
    """Such as frozen ones: what they spent adds up, and what they learnt without budget certifies nothing."""
    spent = total_privacy([scaler(1.0).fit(X), scaler(1.0).fit(X)])
    for step in (
        FrozenEstimator(scaler(1.0).fit(X)),
        FrozenEstimator(make_pipeline(scaler(1.0)).fit(X)),
        FunctionTransformer(scaler(1.0).fit(X).transform),
    ):
        total = total_privacy(make_pipeline(step, scaler(1.0)).fit(X))
        assert (total.epsilon, total.delta) == (pytest.approx(spent.epsilon), spent.delta)
    frozen = FrozenEstimator(make_pipeline(StandardScaler()).fit(X))
    with pytest.warns(PrivacyWarning, match="without budget: StandardScaler"):
        assert total_privacy(make_pipeline(frozen, scaler(1.0)).fit(X)).epsilon == math.inf


def test_a_function_that_takes_other_rows_than_made_up_ones():
    words = np.array([["a", "1"], ["b", "2"], ["c", "3"]] * 1000, dtype=object)
    lengths = FunctionTransformer(lambda table: np.array([[len(text) + len(number)] for text, number in table]))
    pipeline = make_pipeline(lengths, scaler(1.0)).fit(words)
    with pytest.warns(PrivacyWarning, match="could not be tested: give rows="):
        assert total_privacy(pipeline).epsilon == math.inf
    assert total_privacy(pipeline, rows=words[:5]).epsilon == pytest.approx(1.0)


def test_a_seed_in_any_step_closes_the_total():
    steps = [scaler(1.0).fit(X), scaler(1.0, random_state=0).fit(X)]
    with pytest.warns(PrivacyWarning, match="^PrivateScaler: Seeded: not for release"):
        total = total_privacy(steps)
    assert (total.epsilon, total.faults) == (math.inf, (f"PrivateScaler: {SEEDED}",))
    assert total.nominal == total_privacy([steps[0], scaler(1.0).fit(X)]).epsilon
    free = PrivateScaler(None, bounds=(-1, 1), random_state=0).fit(X)
    assert total_privacy([steps[0], free], delta=1e-6).epsilon == pytest.approx(1.0)


def test_statements_and_engines_count():
    rule = cs.DPSGD(cs.schedules.Constant(0.5), clip=1.0, noise_std=0.01, batch=250)
    stated = cs.account(rule, records=5000, steps=50, delta=1e-5, adjacency="zero-out")

    class Engine:
        def statement(self):
            return stated

    step = scaler(1.0).fit(X)
    expected = total_privacy([step, Sampled().fit(X)])
    assert total_privacy([step, stated]).epsilon == total_privacy([Engine(), step]).epsilon == expected.epsilon
    assert total_privacy(stated).epsilon == total_privacy(Engine()).epsilon == stated.certified
    with pytest.warns(PrivacyWarning, match="DPSGD: The lock was open."):
        assert total_privacy([step, fail_closed(stated, "The lock was open.")]).epsilon == math.inf


@pytest.mark.parametrize("others", [1, 3])
def test_composing_never_costs_more_than_adding_up(others):
    """Also where only one point of a curve is known, as from a file."""
    rule = cs.DiceSGD(cs.schedules.Constant(0.5), 1.0, 1.0, 0.5, residual_cap=2.0, batch=50)
    dice = cs.account(rule, records=5000, steps=50, delta=1e-5, adjacency="zero-out")
    gamma = cs.account(cs.GammaDPSGD(cs.schedules.Constant(0.5), 1.0, 0.05, batch=50), 5000, 50, 1e-5, "zero-out")
    point = replace(dice, certificate=Certificate(profiles.point(dice.certified, 1e-5), ()))
    sampled = Sampled().fit(X).statement_
    for parts in ([sampled] * (1 + others), [dice, sampled], [gamma, *[sampled] * others], [point, *[dice] * others]):
        total = total_privacy(parts)
        assert 0 < total.epsilon <= sum(part.certified for part in parts) * (1 + 1e-9)


def test_what_cannot_be_added_up_is_refused():
    with pytest.raises(ValueError, match="same kind of neighbours, got replace-one, zero-out"):
        total_privacy([scaler(1.0).fit(X), scaler(1.0, adjacency="replace-one").fit(X)])
    with pytest.raises(ValueError, match=r"^steps must hold a fitted private step, got PrivateScaler\.$"):
        total_privacy([scaler(1.0)])
    with pytest.raises(ValueError, match=r"^steps must be a pipeline, .* or a list of fitted steps, got int\.$"):
        total_privacy(3)
    with pytest.raises(ValueError, match="delta must be a number above 0 and below 1"):
        total_privacy(scaler(1.0).fit(X), delta=2.0)


def test_a_step_that_certifies_nothing_makes_the_total_infinite():
    step = scaler(1.0).fit(X)
    other = Sampled()
    rule = cs.DPSGD(cs.schedules.Constant(0.5), clip=1.0, noise_std=0.0, batch=250)
    other.statement_ = cs.account(rule, records=5000, steps=50, delta=1e-5, adjacency="zero-out")
    assert total_privacy([step, other]).epsilon == math.inf


def test_what_the_statements_do_not_cover_is_repeated():
    model = PrivateLogisticRegression(random_state=0, class_weight="balanced")
    with pytest.warns(PrivacyWarning):
        model.fit(X, X[:, 0] > 0)
    total, warned = warnings_of(lambda: total_privacy([scaler(1.0).fit(X), model]))
    assert warned == list(total.faults)
    assert total.epsilon == math.inf
    assert total.reasons[: len(total.faults)] == total.faults
    assert "classes were learnt from y without budget" in " ".join(total.faults)
    assert total.notes == ()


def test_a_search_tells_of_its_other_fits():
    search = GridSearchCV(scaler(1.0), {"delta": [1e-6, 1e-7]}, cv=2, scoring=lambda *unused: 0.0)
    with pytest.raises(ValueError, match=r"^steps must be fitted, and a search with refit=True"):
        total_privacy(search)
    with pytest.warns(PrivacyWarning, match="stand for"):
        search.fit(X)
    for steps in (search, search.best_estimator_, make_pipeline(search.best_estimator_), [search]):
        total, warned = warnings_of(lambda steps=steps: total_privacy(steps))
        assert re.search(r"stand for 5 fits: .* ε = 5, δ = 3\.2e-06 together", warned[-1])
        assert warned == [*total.faults, *total.notes]
        assert total.nominal == pytest.approx(1.0)  # of the last fit
        assert str(total).splitlines()[-1] == f"  - Not covered: {total.notes[0]}"
    total, warned = warnings_of(lambda: total_privacy([search]))
    assert warned[0] == "GridSearchCV chose between 2 settings by scores on the records, without budget."
    assert (total.epsilon, total.faults) == (math.inf, tuple(warned[:1]))
    with pytest.warns(PrivacyWarning, match="stand for"):
        total = total_privacy(search.best_estimator_)  # how it was chosen is out of sight
    assert total.epsilon == pytest.approx(1.0)
    assert str(total).startswith("all steps: ε = 1 at δ = 1e-06\n  neighbours: one record contributes to nothing")


def test_a_last_digit_of_delta_does_not_matter():
    """Statements from a file hold at their own δ only, and 0.1·δ + 0.9·δ need not equal δ in floating point."""
    asked = 1.8303e-05
    steps = [scaler(1.0).fit(X), Sampled().fit(X)]
    for step, delta in zip(steps, (0.1 * asked, asked - 0.1 * asked), strict=True):
        step.statement_ = replace(step.statement_, delta=delta, certificate=Certificate(profiles.point(1.0, delta), ()))
    own = sum(step.statement_.delta for step in steps)
    assert own > asked
    total = total_privacy(steps, asked)
    assert (total.epsilon, total.delta) == (2.0, own)
    assert total_privacy(steps, 0.99 * asked).epsilon == math.inf
