"""What theory expects of a stream: how far its average ends from the model that fits what people send.

It is computed from records without noise, so it is for those who may see the records.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clipsilon.analysis.fixed_points import stable_point
from clipsilon.live.learner import Public, steps_of
from clipsilon.live.store import Entry
from clipsilon.problems.losses.base import label_kind
from clipsilon.problems.problem import Problem
from clipsilon.rules.noise import Correlated
from clipsilon.rules.schedules import Constant, InverseTime
from clipsilon.theory.correlated_forecast import correlated_forecast
from clipsilon.theory.forecast import Forecast, elapsed, mean_path

Array = NDArray[np.float64]

MOST_RECORDS = 2000
"""The number of records that a forecast looks at: the last ones, which show how people react now."""
LEAST_RECORDS = 200
"""The number of records below which there is no forecast."""
_PER_COLUMN = 10  # records per column below which there is none, either
_MOST_COLUMNS = 200  # the time grows with the square


def expected_gap(
    public: Public, noise: Correlated, horizon: int, start: Array, sent: Sequence[Entry]
) -> Forecast | None:
    """Forecast the squared distance of the average at the end from the model that fits what people send.

    It is what `clipsilon.tune` forecasts for such a rule, for a population that goes on sending what was sent lately.

    Parameters
    ----------
    public : Public
        The public numbers of the stream.
    noise : Correlated
        Its noise.
    horizon : int
        The number of records at the end.
    start : array of shape (d,)
        The model that was deployed first.
    sent : sequence of Entry
        The last records.

    Returns
    -------
    Forecast or None
        In parts: from clipping and from the start, from the order of the people, and from the noise. None if there are
        too few records or too many columns, if the step sizes are of another kind than `Constant` or `InverseTime`, or
        if the records have no best model.
    """
    step, steps = public.step, steps_of(public, horizon)
    if not isinstance(step, Constant | InverseTime) or public.columns > _MOST_COLUMNS:
        return None
    if len(sent) < max(LEAST_RECORDS, _PER_COLUMN * public.columns):
        return None
    problem = _problem_of(public, sent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether it converged is checked below
        best = stable_point(problem, start)
    if not best.converged:
        return None
    path = mean_path(problem, public.clip, start, elapsed(step, steps))
    about = (step, steps, noise, public.batch, problem)
    return correlated_forecast(path, best.theta, *about, records=horizon)


def _problem_of(public: Public, sent: Sequence[Entry]) -> Problem:
    """Return the problem of records that do not react any further."""
    labels = None if label_kind(public.loss) == "none" else np.array([entry.label for entry in sent])
    features = np.array([entry.features for entry in sent])
    return Problem(features, labels, loss=public.loss, region=public.region)
