"""The smallest proven gap: the bound of paper 1, from the problem's constants alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from clipsilon.theory.forecast import elapsed, forecast, mean_path
from clipsilon.theory.performative import effective_convexity, sharp_clipped_sgd_bound
from clipsilon.theory.tuning.task import Option, TuningTask, falling_step


def least_bound(task: TuningTask, progress: bool | None) -> list[Option]:
    """Return the PCSGD that minimises `sharp_clipped_sgd_bound` at the end of the run."""
    (candidate,) = task.candidates
    known, far = task.problem.constants(), float(np.sum((task.start - task.target) ** 2))
    if known.estimated:
        raise ValueError(f"goal must be 'gap' where constants are estimates: {', '.join(known.estimated)}.")
    d = task.problem.dimension

    def bound(at: Sequence[float]) -> float:
        clip, step = float(np.exp(at[0])), falling_step(*at[1:])
        longest = min(clip, known.gradient_bound)
        # A Poisson batch varies in size, which adds at most longest²/B to the mean square of an update, as noise does.
        extra = longest / np.sqrt(task.batch * d) if candidate.sampling == "poisson" else 0.0
        noise = float(np.hypot(candidate.noise_std * clip, extra))
        return float(np.log(sharp_clipped_sgd_bound(known, step, clip, noise, far, d, task.steps)))

    fastest = np.log(1.0 / effective_convexity(known))
    most = np.log(known.gradient_bound)
    tries = [(most - a, fastest - b, fastest + c) for a in (0, 3) for b in (0, 5) for c in (0, 5)]
    found = [minimize(bound, at, method="Nelder-Mead", options={"maxfev": 400}) for at in tries]
    best = min(found, key=lambda one: one.fun)
    clip, step = float(np.exp(best.x[0])), falling_step(*best.x[1:])
    path = mean_path(task.problem, clip, task.start, max(elapsed(step, task.steps), 1e-9))
    expected = forecast(path, task.target, step, task.steps, candidate.noise_std * clip, task.batch)
    return [Option(candidate.rule(step, clip, task.batch), expected, bound=float(np.exp(best.fun)))]
