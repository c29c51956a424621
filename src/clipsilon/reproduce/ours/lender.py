"""Ours: a lender's year. A model is deployed behind HTTP, and goes on learning from applicants who react to it."""

from __future__ import annotations

import http.client
import json
import tempfile
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from clipsilon.analysis.fixed_points import stable_point
from clipsilon.engine.runner import run
from clipsilon.live.stream import Stream
from clipsilon.privacy.calibration import calibrated
from clipsilon.privacy.statement import account
from clipsilon.privacy.warning import PrivacyWarning
from clipsilon.problems.losses import Anticipating, Logistic
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import FixedIntercept
from clipsilon.report.charts import Chart, Series, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.ours.lender_population import (
    APPROVED,
    COLUMNS,
    PER_WEEK,
    SPEED,
    STRENGTH,
    WEEKS,
    applicants,
    follow,
    moved,
    reaction,
    sent,
)
from clipsilon.rules.presets import PCSGD
from clipsilon.rules.schedules import Constant
from clipsilon.theory.reactions import Deployment, EstimatedResponse, estimate, explore

Array = NDArray[np.float64]
Update = Callable[[int, Array, Array], Array]  # week, features and labels as sent → the next model

EPSILON, DELTA = 1.0, 1e-5
EXPLORING = 20  # weeks in which models are varied, to learn the reaction
VARIATION = 0.5  # of each coefficient in these weeks
LOSS = Logistic(l2=0.01)
CLIP, BATCH, STEP = 2.0, 50, 0.1
REQUEST = 100  # records per request
LAST = 8  # weeks over which the end is averaged
TOKEN = "a-simulated-lender"

NAIVE, PLAIN, STREAM, AHEAD = (
    "retraining every week, not private",
    "PCSGD",
    "CorrelatedSGD",
    "CorrelatedSGD that anticipates",
)


class Year(NamedTuple):
    """One lender's year.

    Parameters
    ----------
    models : ndarray of shape (weeks, d)
        The deployed models, with the intercept last.
    epsilon : float
        The ε that is certified for every applicant; nominal, because the experiment is seeded.
    released : array
        The model that is released at the end of the year.
    """

    models: Array
    epsilon: float
    released: Array


def retrain() -> Year:
    """Fit the model to each week's applications alone, without privacy."""

    def update(week: int, features: Array, labels: Array) -> Array:
        return stable_point(Problem(_with_ones(features), labels, loss=LOSS)).theta

    models, last = _live(update)
    return Year(models, np.inf, last)


def independent(seed: int) -> Year:
    """Update the model by PCSGD, in one pass over the applicants."""
    records = WEEKS * PER_WEEK
    draft = PCSGD(Constant(STEP), CLIP, 1.0, batch=BATCH, sampling="single-pass")
    rule = calibrated(draft, EPSILON, DELTA, records, records // BATCH)
    theta = np.zeros(_columns())

    def update(week: int, features: Array, labels: Array) -> Array:
        nonlocal theta
        problem = Problem(_with_ones(features), labels, loss=LOSS)
        trace = run(
            problem,
            rule,
            PER_WEEK // BATCH,
            start=theta,
            record=[PER_WEEK // BATCH],
            seed=seed * WEEKS + week,
            progress=False,
        )
        theta = np.asarray(trace.theta[0, -1])
        return theta

    models, last = _live(update)
    stated = account(rule, records, records // BATCH, DELTA)
    return Year(models, stated.certified, np.mean([*models[WEEKS // 2 :], last], axis=0))


def correlated(seed: int) -> Year:
    """Send the applications to a stream behind HTTP, which updates the model with correlated noise."""
    return _streamed(Logistic(LOSS.l2), np.zeros((0, _columns())), seed)


def anticipating(seed: int) -> tuple[Year, EstimatedResponse]:
    """Vary the model for some weeks, estimate the reaction privately, and then anticipate it."""
    found, tried = estimated(seed)
    loss = Anticipating(LOSS, FixedIntercept(found.part))
    return _streamed(loss, tried, seed), found


def estimated(seed: int) -> tuple[EstimatedResponse, Array]:
    """Return the reaction, estimated privately from weeks in which the model is varied, and the models of these weeks.

    A lender knows what it deployed, and so what people have followed so far; how fast they follow is taken as known.
    """
    d = applicants().features.shape[1]
    tried = explore(np.zeros(d), VARIATION, EXPLORING, seed=seed).models
    logs, followed = [], np.zeros(d)
    for week, theta in enumerate(tried):
        followed = follow(followed, theta)
        logs.append(Deployment(followed, *sent(week, followed)))
    found = estimate(
        logs, columns=COLUMNS, structure="strength", unknown="still", epsilon=EPSILON, delta=DELTA, seed=seed
    )
    return found, _with_zeros(tried)


def _streamed(loss: Logistic | Anticipating, tried: Array, seed: int) -> Year:
    """Return the year of a stream that begins after the weeks in which models were `tried`."""
    from clipsilon.live.service import running

    records = (WEEKS - len(tried)) * PER_WEEK
    with tempfile.TemporaryDirectory() as folder:
        stream = Stream(
            Path(folder) / "lender.db",
            dimension=_columns() - 1,
            loss=loss,
            epsilon=EPSILON,
            delta=DELTA,
            horizon=records,
            batch=BATCH,
            clip=CLIP,
            step=Constant(STEP),
            deploy_every=PER_WEEK // BATCH,
            intercept=True,
            seed=seed,
        )
        with stream, running(stream, TOKEN) as address, closing(Client(address)) as client:

            def update(week: int, features: Array, labels: Array) -> Array:
                if week >= len(tried):
                    client.send(week, features, labels)
                return client.model() if week + 1 >= len(tried) else tried[week + 1]

            models, _ = _live(update, tried[0] if len(tried) else np.zeros(_columns()))
            return Year(models, stream.statement().nominal, stream.model.average)


class Client:
    """A lender's branch: it asks for the model, and sends applications under it.

    Parameters
    ----------
    address : str
        URL of a service.
    """

    def __init__(self, address: str):
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)

    def _ask(self, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        content: dict[str, object] = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(f"The service answered {answer.status}: {content['error']}")
        return content

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def model(self) -> Array:
        """Return the deployed model."""
        return np.array(self._ask("GET", "/model")["theta"], dtype=np.float64)

    def send(self, week: int, features: Array, labels: Array) -> None:
        """Send a week's applications.

        Parameters
        ----------
        week : int
            Number of the week, which makes up the names of people.
        features, labels : array
            One row per application.
        """
        version = self._ask("GET", "/model")["version"]
        for first in range(0, len(labels), REQUEST):
            records = [
                {"person": f"{week}-{first + k}", "features": row.tolist(), "label": int(label)}
                for k, (row, label) in enumerate(
                    zip(features[first : first + REQUEST], labels[first : first + REQUEST], strict=True)
                )
            ]
            body: dict[str, object] = {"key": f"{week}-{first}", "version": version, "records": records}
            refused = self._ask("POST", "/records", body)["refused"]
            if refused:
                raise RuntimeError(f"The service refused a record: {refused}")


def _live(update: Update, start: Array | None = None) -> tuple[Array, Array]:
    """Return the models that are deployed in each week, and the one after the last."""
    theta = np.zeros(_columns()) if start is None else start
    models, followed = [], np.zeros(_columns() - 1)
    for week in range(WEEKS):
        models.append(theta)
        followed = follow(followed, theta[:-1])
        theta = update(week, *sent(week, followed))
    return np.array(models), theta


def _columns() -> int:
    return int(applicants().features.shape[1]) + 1


def _with_ones(features: Array) -> Array:
    return np.column_stack([features, np.ones(len(features))])


def _with_zeros(models: Array) -> Array:
    return np.column_stack([models, np.zeros(len(models))])


def population(loss: Logistic | Anticipating) -> Problem:
    """Return the problem of all applicants, who have reacted in full."""
    people = applicants()
    return Problem(_with_ones(people.features), people.labels, loss=loss, response=FixedIntercept(reaction()))


class Quality(NamedTuple):
    """How well a model serves the lender once people have reacted to it in full.

    Parameters
    ----------
    risk : float
        Mean loss.
    defaults : float
        Fraction of the approved who default.
    """

    risk: float
    defaults: float


def quality(theta: Array) -> Quality:
    """Return the quality of a model that stays deployed."""
    people = applicants()
    features = _with_ones(moved(people.features, people.labels, theta[:-1]))
    margins = features @ theta
    risk = np.mean(np.logaddexp(0.0, margins) - people.labels * margins) + LOSS.l2 / 2 * theta @ theta
    approved = np.argsort(margins)[: round(APPROVED * len(margins))]
    return Quality(float(risk), float(people.labels[approved].mean()))


class Lenders(NamedTuple):
    """What four lenders did, in one simulated year.

    Parameters
    ----------
    years : dict of str to Year
        By the name of the method.
    strength : tuple of three numbers
        The estimated strength of the reaction of those who will default, and its confidence interval.
    """

    years: dict[str, Year]
    strength: tuple[float, float, float]


def simulate(seed: int) -> Lenders:
    """Run the year of all four lenders on the same applicants."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the findings say that it is seeded
        ahead, found = anticipating(seed)
        years = {NAIVE: retrain(), PLAIN: independent(seed), STREAM: correlated(seed), AHEAD: ahead}
    return Lenders(years, (float(found.strength[1]), float(found.strength_low[1]), float(found.strength_high[1])))


@experiment(
    "ours-lender",
    paper=None,
    where="a lender's year",
    title="A lender's year: learning while applicants react",
    parameters={
        "applicants": f"{WEEKS * PER_WEEK}, {PER_WEEK} per week, each once; a quarter of them will default",
        "reaction": f"those who will default move columns {', '.join(map(str, COLUMNS))} by −{STRENGTH}·θ, going "
        f"{SPEED:.0%} of the way per week",
        "certified": f"ε = {EPSILON:g}, δ = 10⁻⁵, per applicant",
        "deployment": "once per week, behind HTTP",
        "B, clip, step": f"{BATCH}, {CLIP:g}, {STEP:g}",
    },
    extra="serve",
)
def lender(lab: Lab) -> Result:
    """Each line is a lender. All deploy a model once per week and learn from the applications that it causes. The
    picture shows how good each deployed model would be if it stayed and people had reacted in full. The lender that
    anticipates deploys varied models first, to learn the reaction from people who do not train the model later.
    """
    found: Lenders = lab.keep(simulate, 0)
    # To anticipate the true reaction leads to the optimum, and is much faster to solve than the optimum by itself.
    stable, optimum = (
        stable_point(population(loss)).theta for loss in (LOSS, Anticipating(LOSS, FixedIntercept(reaction())))
    )
    weeks = np.arange(1, WEEKS + 1)
    scores = {name: [quality(theta) for theta in year.models] for name, year in found.years.items()}
    goals = {"the stable point": quality(stable), "the performative optimum": quality(optimum)}
    charts = [
        _chart(f"{heading}, week by week", axis, weeks, scores, goals, which)
        for which, heading, axis in ((0, "Mean loss", "loss"), (1, "Defaults among the approved", "fraction"))
    ]
    ends = {name: (_end(scores[name]), year.released, year.epsilon) for name, year in found.years.items()}
    points = {name: (goals[name], goal, None) for name, goal in zip(goals, (stable, optimum), strict=True)}
    rows = [
        (name, *each, *_gaps(theta, stable, optimum), epsilon)
        for name, (each, theta, epsilon) in {**ends, **points}.items()
    ]
    columns = (
        "lender",
        f"mean loss, last {LAST} weeks",
        "defaults among the approved",
        "‖θ − θ_PS‖², released",
        "‖θ − θ_PO‖², released",
        "certified ε (nominal: seeded)",
    )
    return Result(_findings(found, scores, goals), charts, [Table("At the end of the year", columns, rows)])


def _chart(
    title: str,
    axis: str,
    weeks: NDArray[np.int64],
    scores: dict[str, list[Quality]],
    goals: dict[str, Quality],
    which: int,
) -> Chart:
    lines = [Series(name, weeks, [each[which] for each in found]) for name, found in scores.items()]
    dashed = [Series(name, weeks, np.full(WEEKS, goal[which]), kind="dashed") for name, goal in goals.items()]
    return Chart(title, "week", axis, [*lines, *dashed], y_log=True)


def _end(found: list[Quality]) -> Quality:
    """Return the means over the last weeks."""
    return Quality(*np.mean(found[-LAST:], axis=0).tolist())


def _gaps(theta: Array, stable: Array, optimum: Array) -> tuple[float, float]:
    return float(np.sum((theta - stable) ** 2)), float(np.sum((theta - optimum) ** 2))


def _findings(found: Lenders, scores: dict[str, list[Quality]], goals: dict[str, Quality]) -> list[Finding]:
    naive, plain, stream, ahead = (_end(scores[name]) for name in (NAIVE, PLAIN, STREAM, AHEAD))
    stable = goals["the stable point"].risk
    strength, low, high = found.strength
    spent = max(found.years[name].epsilon for name in (PLAIN, STREAM, AHEAD))
    moves = {name: _largest_move(year.models) for name, year in found.years.items()}
    return [
        Finding(
            "Retraining every week does not settle down while a private stream does.",
            f"In the last {LAST} weeks retraining moves the model by up to {moves[NAIVE]:.2g} per week, the stream "
            f"with correlated noise by up to {moves[STREAM]:.2g}; their mean losses are {naive.risk:.4g} and "
            f"{stream.risk:.4g}.",
            moves[NAIVE] > 2 * moves[STREAM],
        ),
        Finding(
            "At the same certified ε, correlated noise serves the lender better than independent noise.",
            f"Mean loss {stream.risk:.4g} against {plain.risk:.4g} of PCSGD; {stream.defaults:.2%} against "
            f"{plain.defaults:.2%} of the approved default.",
            stream.risk < plain.risk,
        ),
        Finding(
            "The reaction can be learnt privately from the lender's own logs.",
            f"The strength is estimated as {strength:.3g}, between {low:.3g} and {high:.3g}; it is {STRENGTH}.",
            low <= STRENGTH <= high,
        ),
        Finding(
            "A model that anticipates the reaction is better than any model that retraining could end on.",
            f"Its mean loss is {ahead.risk:.4g}; that of the stable point is {stable:.4g}, and that of the "
            f"performative optimum {goals['the performative optimum'].risk:.4g}.",
            ahead.risk < stable,
        ),
        Finding(
            "No applicant pays more than the budget.",
            f"The largest ε is {spent:.4g} of {EPSILON:g}, at δ = {DELTA:g}. Each applicant is in one part only: in "
            "the logs from which the reaction is estimated, or in the stream.",
            spent <= EPSILON,
            "The experiment is seeded, so nothing is certified of its own models; without a seed these numbers are.",
        ),
    ]


def _largest_move(models: Array) -> float:
    return float(np.linalg.norm(np.diff(models[-LAST:], axis=0), axis=1).max())
