"""Paper 1's two problems (section 6), which the demo, the bias meter and the figures use."""

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
    """The rows that paper 1 uses, standardised and split 7 : 3.

    Parameters
    ----------
    train, test : Dataset
        The two parts.
    real : bool
        Whether this is the real data set or a generated stand-in.
    source : str
        Where the data came from, in words.
    """

    train: Dataset
    test: Dataset
    real: bool
    source: str


def quadratic(beta: float, a: float = 10.0, b: float = 1.0) -> Problem:
    """Return paper 1's first problem: minimise E(θ + a·z)²/2 over |θ| ≤ 10, where z is b or 0 and reacts by −βθ.

    Parameters
    ----------
    beta : float
        Strength of the reaction.
    a : float, default 10.0
        Factor of z in the loss.
    b : float, default 1.0
        Value of the tenth of the records that is not zero.

    Returns
    -------
    Problem
        100,000 records of one number.
    """
    data = bernoulli(RECORDS, p=0.1, scale=b)
    return Problem(data, loss=losses.Quadratic(a), response=responses.LocationShift(beta), region=regions.Box(-10, 10))


@cache
def all_credit_data() -> Dataset:
    """Return all complete rows as they are, which are read once per process."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")  # pages and tables say that the data is a stand-in
        return credit()


@cache
def credit_data() -> Credit:
    """Return the training and test part of paper 1's rows."""
    data = all_credit_data()
    train, test = data.first(PAPER_ROWS).standardised().split(0.7)
    source = data.source if data.real else "a generated stand-in, because the real data could not be downloaded"
    return Credit(train, test, data.real, source)


def credit_problem(beta: float) -> Problem:
    """Return logistic regression on the training part, with applicants who react to the model (Example 2.3)."""
    train = credit_data().train
    loss = losses.Logistic(l2=100 / PAPER_ROWS, positive_weight=2.0)
    return Problem(train.features, train.labels, loss=loss, response=responses.BestResponse(beta))


def held_out_problem(beta: float) -> Problem:
    """Return the same problem on the test part."""
    test = credit_data().test
    return credit_problem(beta).on(test.features, test.labels)


def stand_in_remark() -> str:
    """Return a remark if the credit data is not the real data set, else an empty string."""
    data = credit_data()
    return (
        "" if data.real else "The credit data is a generated stand-in, because the real data could not be downloaded."
    )
