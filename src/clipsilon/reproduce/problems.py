"""Paper 1's two problems (section 6), as the demo, the bias meter and the figures use them."""

from __future__ import annotations

import warnings
from functools import cache
from typing import NamedTuple

from clipsilon.datasets import bernoulli, credit
from clipsilon.datasets.base import Dataset
from clipsilon.datasets.give_me_some_credit import PAPER_ROWS
from clipsilon.problems import losses, regions, responses
from clipsilon.problems.problem import Problem

RECORDS = 100_000  # m of the quadratic problem


class Credit(NamedTuple):
    """The rows that paper 1 took, standardised, 7 : 3."""

    train: Dataset
    test: Dataset
    real: bool
    source: str  # where they came from, in words


def quadratic(beta: float, a: float = 10.0, b: float = 1.0) -> Problem:
    """Minimise E(θ + a·z)²/2 over |θ| ≤ 10, where z is b or 0 and reacts by −βθ (section 6, first problem)."""
    data = bernoulli(RECORDS, p=0.1, scale=b)
    return Problem(data, loss=losses.Quadratic(a), response=responses.LocationShift(beta), region=regions.Box(-10, 10))


@cache
def credit_data() -> Credit:
    """Training and test part, read once a process."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")  # that it is a stand-in is said wherever results are shown
        data = credit()
    train, test = data.first(PAPER_ROWS).standardised().split(0.7)
    source = data.source if data.real else "a generated stand-in, because the real data could not be downloaded"
    return Credit(train, test, data.real, source)


def credit_problem(beta: float) -> Problem:
    """Logistic regression whose applicants answer the model (Example 2.3), on the training part; η = 100/m."""
    train = credit_data().train
    loss = losses.Logistic(l2=100 / PAPER_ROWS, positive_weight=2.0)
    return Problem(train.features, train.labels, loss=loss, response=responses.BestResponse(beta))


def held_out_problem(beta: float) -> Problem:
    """The same on the test part."""
    test = credit_data().test
    return credit_problem(beta).on(test.features, test.labels)


def stand_in() -> str:
    """A remark where the credit data is not the real one, else nothing."""
    data = credit_data()
    return "" if data.real else "The credit data is a generated stand-in: the real one could not be downloaded."
