"""The forecast of a simulation's error, and the page's numbers."""

from dataclasses import replace

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.local import Averaging, Crowd, simulate
from clipsilon.local.study import FACTORS, forecast_limit, make_study

CROWD = Crowd(200_000, dimension=2, budgets="choice:1,8")


def test_the_forecast_is_the_limit_of_simulations():
    """Means of 12 squared distances in 4 dimensions: relative deviations of about 0.2, so half and double are 5 away.

    Without forgetting the start in the mean, which these few dimensions do quickly.
    """
    how = Averaging(20)
    found = simulate(CROWD, how, cs.schedules.Power(0.5, 0.5), replicates=12, seed=0)
    limit = forecast_limit(CROWD, how)
    assert 0.5 < CROWD.devices * found.average[:, -1].mean() / limit < 2.0
    assert limit < 0.7 * forecast_limit(CROWD, replace(how, weights="equal"))


def test_where_there_is_no_forecast():
    assert np.isnan(forecast_limit(replace(CROWD, liars=0.1), Averaging()))
    assert np.isnan(forecast_limit(CROWD, Averaging(trim=0.1)))


def test_a_study_of_small_crowds():
    crowd, told = replace(CROWD, devices=2000), []
    study = make_study(crowd, Averaging(), [5, 10], lambda batch: cs.schedules.Constant(0.01), replicates=2, seed=0,
                       report=told.append)  # fmt: skip
    assert [each.averaging.batch for each in study.simulations] == [5, 10]
    assert study.fewer == 200
    assert {name: errors.shape for name, errors in study.by_budget.items()} == {
        "budget": (len(FACTORS), 2),
        "equal": (len(FACTORS), 2),
    }
    assert len(told) == 4
    alone = simulate(replace(crowd, devices=200), Averaging(10), cs.schedules.Constant(0.01), replicates=2, seed=0)
    np.testing.assert_array_equal(study.by_budget["budget"][FACTORS.index(1.0)], alone.average[:, -1])
    assert study.limits[0] == pytest.approx(forecast_limit(crowd, Averaging(5)))
