"""The frontier's problems and its search."""

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.reproduce.ours.frontier_findings import Found, Goal, choices, goals_reached, over_epochs
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
    found = [gaps(small, "PCSGD", s, e, 20, 3).mean() for s, e in zip(best, (8.0, 0.5), strict=True)]
    poor = best[0]._replace(step=100 * best[0].step)
    assert found[0] < found[1]
    assert found[0] < gaps(small, "PCSGD", poor, 8.0, 20, 3).mean()
    assert best[0].epochs <= 2


def test_a_search_from_known_settings_is_not_worse(small):
    known = Setting(2.0, 0.05, 20, 2, decay=3.0, restraint=0.1)
    (best,) = search(small, "CorrelatedSGD", (2.0,), 2, [known])
    assert (
        gaps(small, "CorrelatedSGD", best, 2.0, 32, 1).mean() <= gaps(small, "CorrelatedSGD", known, 2.0, 32, 1).mean()
    )


@pytest.mark.parametrize("decay", [0.0, 3.0])
def test_steps_have_the_mean_and_the_decay_that_is_set(decay):
    setting = Setting(1.0, 0.2, 10, 4, decay=decay)
    sizes = [cs.schedules.size(setting.schedule(1000), t) for t in range(1, 401)]
    assert np.mean(sizes) == pytest.approx(0.2, rel=1e-6)
    assert sizes[0] / sizes[-1] == pytest.approx(1 + decay, rel=0.01)


def test_the_matrix_of_the_noise_is_that_of_the_setting(small):
    setting = Setting(2.0, 0.1, 20, 1)
    usual, loose, tight = (
        rule_of(small, "CorrelatedSGD", setting._replace(restraint=restraint), 2.0).noise
        for restraint in (None, 0.0, 1.0)
    )
    root = cs.CorrelatedSGD(cs.schedules.Constant(0.1), 1.0, 1.0, 20).noise.buffers
    np.testing.assert_array_equal(usual.buffers, root)
    assert loose.std > usual.std > tight.std  # what is to be taken back later costs more noise now


def found(name, epsilon, gap, epochs=1):
    """Two runs whose mean gap is known, and its standard error: a tenth of it."""
    return Found(name, epsilon, Setting(1.0, 1.0, 1, epochs), np.array([0.9 * gap, 1.1 * gap]))


def test_each_way_to_spend_a_budget_is_compared_with_its_best_number_of_epochs():
    once = [found("PCSGD, in order", 1.0, 3.0), found("PCSGD", 1.0, 5.0), found("CorrelatedSGD", 1.0, 2.0)]
    several = [found("PCSGD", 1.0, 4.0, 8), found("CorrelatedSGD", 1.0, 2.9, 8), found("TrackedSGD", 1.0, 2.7, 16)]
    (chosen,) = choices([*once, *several])
    assert [one.mean for one in (chosen.plain, *chosen.rivals)] == pytest.approx([3.0, 2.0, 2.7])
    finding = over_epochs([chosen])
    assert finding.holds
    assert "the gap of CorrelatedSGD is 0.667 and the gap of TrackedSGD is 0.9, at ε = 1." in finding.measured
    assert "Better by more than two standard errors: CorrelatedSGD at ε = 1." in finding.measured
    level = over_epochs([chosen._replace(rivals=chosen.rivals[1:])])
    assert not level.holds
    assert "standard errors: none." in level.measured


def test_goals_compare_with_the_best_of_the_others():
    once = [found("A", 1.0, 1.0), found("B", 1.0, 4.0), found("C", 1.0, 2.0), found("C", np.inf, 0.9)]
    reached = goals_reached(
        (Goal("A", 1.0, ("B", "C"), 0.5), Goal("A", 1.0, ("C",), 1.2, without_noise=True)), once, []
    )
    assert reached.holds
    assert "At ε = 1, A has 0.50 ± 0.07 times the gap of C; the goal, 0.5, is reached." in reached.measured
    assert "A has 1.11 ± 0.16 times the gap of C without noise" in reached.measured
    missed = goals_reached((Goal("A", 1.0, ("B", "C"), 0.4),), once, [])
    assert not missed.holds
    assert "the goal, 0.4, is missed." in missed.measured


def test_without_noise_nothing_is_certified(small):
    setting = Setting(2.0, 0.1, 20, 1)
    rule = rule_of(small, "PCSGD, in order", setting, np.inf)
    assert cs.account(rule, 1000, 50, DELTA, ADJACENCY).certified == np.inf
