"""The lender's year: a population that reacts with delay, four lenders, and the command that shows them."""

from contextlib import closing

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.live.service import running
from clipsilon.problems.responses import FixedIntercept, respond
from clipsilon.reproduce.base import EXPERIMENTS
from clipsilon.reproduce.ours import lender, lender_population
from command_line import run


def test_people_move_as_the_response_says():
    people = lender_population.applicants()
    followed = np.linspace(-1.0, 1.0, people.features.shape[1])
    found = lender_population.moved(people.features[:200], people.labels[:200], followed)
    moved, response = np.empty(followed.size), lender_population.reaction()
    for features, label, row in zip(people.features, people.labels, found, strict=False):
        respond(response, followed, features, label, moved, None)
        np.testing.assert_allclose(row, moved, atol=1e-12)


def test_people_follow_a_model_with_delay():
    followed, deployed = np.zeros(2), np.array([1.0, -2.0])
    for _ in range(40):
        followed = lender_population.follow(followed, deployed)
    np.testing.assert_allclose(followed, deployed, atol=1e-9)
    np.testing.assert_array_equal(lender_population.follow(np.zeros(2), deployed), lender_population.SPEED * deployed)


def test_the_quality_is_the_loss_of_the_problem():
    theta = np.linspace(-0.5, 0.5, lender_population.applicants().features.shape[1] + 1)
    problem = lender.population(lender.LOSS)
    assert lender.quality(theta).risk == pytest.approx(cs.metrics.performative_risk(problem, theta), rel=1e-9)


def test_a_client_says_why_it_was_refused(tmp_path):
    about = {"dimension": 2, "loss": cs.losses.Logistic(), "epsilon": 1.0, "delta": 1e-5, "horizon": 100}
    with (
        cs.live.Stream(tmp_path / "run.db", **about) as stream,
        running(stream, lender.TOKEN) as address,
        closing(lender.Client(address)) as client,
    ):
        client.send(0, np.zeros((3, 2)), np.zeros(3))
        assert stream.accepted == 3
        with pytest.raises(RuntimeError, match="The service answered 409: key"):
            client.send(0, np.ones((3, 2)), np.zeros(3))
        assert stream.accepted == 3


@pytest.mark.verify
def test_the_year_holds_what_it_says(tmp_path, monkeypatch):
    """Seeded, so that it either always holds or never does."""
    monkeypatch.chdir(tmp_path)
    done = run("demo", "live", "--quiet")
    assert done.exit_code == 0, done.output
    assert "wrote clipsilon-demo-live/index.html" in done.stdout
    assert (tmp_path / "clipsilon-demo-live" / "index.html").is_file()
    assert "does not hold" not in done.stdout


def test_the_experiment_needs_the_extra_of_the_service():
    assert EXPERIMENTS["ours-lender"].extra == "serve"
    assert isinstance(lender.population(lender.LOSS).response, FixedIntercept)
