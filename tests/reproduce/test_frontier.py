"""The frontier's problems and its search."""

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.reproduce.ours.frontier_problems import case_of, imbalanced_case, skewed_case
from clipsilon.reproduce.ours.frontier_search import ADJACENCY, DELTA, RULES, Setting, gaps, rule_of, search


@pytest.fixture(scope="module")
def small():
    """A thousand records of one number, of which a tenth is 1."""
    data = cs.datasets.bernoulli(1000, p=0.1)
    loss, response = cs.losses.Quadratic(a=10.0), cs.responses.LocationShift(0.05)
    return case_of(cs.Problem(data, loss=loss, response=response, region=cs.regions.Box(-10, 10)), 5.0)


def test_the_stable_point_of_the_skewed_problem_is_least_squares_over_what_reactions_leave():
    """With y = ȳ + 0.3·⟨x, θ⟩ the normal equations are XᵀX·0.7·θ = Xᵀȳ."""
    problem, scale = skewed_case().problem, np.sqrt(0.7)
    features, targets = problem.features / scale, problem.labels * scale
    expected = np.linalg.lstsq(features, targets, rcond=None)[0] / 0.7
    np.testing.assert_allclose(skewed_case().goal, expected, atol=1e-6)


def test_few_labels_of_the_imbalanced_problem_are_one():
    assert 0.01 < imbalanced_case().problem.labels.mean() < 0.1


CASES = [(name, epochs) for name in RULES for epochs in (1, 4) if (name, epochs) != ("PCSGD, in order", 4)]


@pytest.mark.parametrize(("name", "epochs"), CASES)
def test_every_rule_certifies_the_epsilon_on_the_axis(small, name, epochs):
    setting = Setting(2.0, 0.1, 20, epochs)
    statement = cs.account(rule_of(small, name, setting, 2.0), 1000, setting.steps(1000), DELTA, ADJACENCY)
    assert 0.97 * 2.0 <= statement.certified <= 2.0


def test_the_search_finds_a_better_setting_than_its_first_and_a_better_one_for_a_larger_budget(small):
    best = search(small, "PCSGD", (8.0, 0.5), 2)
    found = [
        gaps(small, rule_of(small, "PCSGD", s, e), s.steps(1000), 20, 3).mean()
        for s, e in zip(best, (8.0, 0.5), strict=True)
    ]
    poor = Setting(best[0].clip, 100 * best[0].step, *best[0][2:])
    assert found[0] < found[1]
    assert found[0] < gaps(small, rule_of(small, "PCSGD", poor, 8.0), poor.steps(1000), 20, 3).mean()
    assert best[0].epochs <= 2


def test_without_noise_nothing_is_certified(small):
    setting = Setting(2.0, 0.1, 20, 1)
    rule = rule_of(small, "PCSGD, in order", setting, np.inf)
    assert cs.account(rule, 1000, 50, DELTA, ADJACENCY).certified == np.inf
