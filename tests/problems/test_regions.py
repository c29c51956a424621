"""Regions: the same problem in another one."""

from __future__ import annotations

import numpy as np
import pytest

import clipsilon as cs


def test_a_problem_in_another_region_has_the_same_records_and_leaves_the_first_as_it_is():
    rng = np.random.default_rng(0)
    problem = cs.Problem(rng.normal(size=(200, 3)), (rng.random(200) < 0.5).astype(float), loss=cs.losses.Logistic())
    inside = problem.within(cs.regions.Ball(0.1))
    assert inside.features is problem.features
    rule = cs.PCSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=1.0)
    free, kept = (cs.run(each, rule, 50, seed=1, progress=False).theta[0] for each in (problem, inside))
    assert np.linalg.norm(kept, axis=1).max() <= 0.1 * (1 + 1e-12)
    assert np.linalg.norm(free, axis=1).max() > 0.1


def test_only_a_region_is_taken():
    problem = cs.Problem(np.zeros((2, 1)), np.zeros(2), loss=cs.losses.Logistic())
    with pytest.raises((TypeError, ValueError), match="region must"):
        problem.within(3.0)
