"""How `clipsilon fit` divides one budget between the scales of the columns and the model."""

from __future__ import annotations

from math import sqrt

from clipsilon.cli.model_kinds import MODELS
from clipsilon.estimators.methods import Budget
from clipsilon.estimators.plans import Task, make_plan, statement_of
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.statement import Statement

_SAFE = 1 - 1e-9  # fraction of the model's budget that it may spend, so that rounding cannot exceed the total


def remaining(whole: Budget, spent: Statement, kind: str, method: str, records: int, columns: int) -> Budget:
    """Return what a model may spend after a scaler so that both together stay within the whole budget.

    If the model's certificate is Gaussian, as the scaler's is, squares of μ add up, and little is lost. Otherwise ε
    and δ add up.

    Parameters
    ----------
    whole : Budget
        (ε, δ) of both together, and the adjacency.
    spent : Statement
        The statement of the fitted scaler.
    kind, method : str
        Kind of model and the algorithm that trains it.
    records, columns : int
        Shape of the training data.

    Returns
    -------
    Budget
    """
    spent = spent if spent.mended is None else spent.mended  # a seed changes what is certified, not what is spent
    profile = spent.certificate.profile
    shift = 0.0 if profile is None or profile.mu is None else profile.mu
    delta = whole.delta - spent.delta
    left = gaussian.largest_mu(whole.epsilon, whole.delta) ** 2 - shift**2
    if left > 0:
        generous = whole._replace(epsilon=_SAFE * gaussian.epsilon(sqrt(left), delta), delta=delta)
        if generous.epsilon > 0 and _is_gaussian(generous, kind, method, records, columns):
            return generous
    return whole._replace(epsilon=_SAFE * (whole.epsilon - spent.certified), delta=delta)


def _is_gaussian(budget: Budget, kind: str, method: str, records: int, columns: int) -> bool:
    """Return whether the certificate is Gaussian as the estimators run the method: with a column of ones."""
    plan = make_plan(Task(method=method, budget=budget, records=records, columns=columns + 1, loss=MODELS[kind]))
    profile = statement_of(plan, records, budget.delta, budget.adjacency).certificate.profile
    return profile is not None and profile.mu is not None
