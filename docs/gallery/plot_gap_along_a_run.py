r"""
Feedback removes the bias
=========================

PCSGD clips and forgets: it ends at the exact bias, which was known before the run. DiceSGD remembers what clipping took
away, feeds it back, and goes on towards the goal. Both clip at 1; the noise differs, as the papers prescribe.
"""

import matplotlib.pyplot as plt
import numpy as np

import clipsilon as cs
from clipsilon.report.palette import COLOURS

records = np.r_[np.zeros(900), np.ones(100)]
problem = cs.Problem(records, loss=cs.losses.Quadratic(a=10.0), response=cs.responses.LocationShift(beta=0.05))
goal, step = cs.stable_point(problem).theta, cs.schedules.InverseTime(10, 100)
rules = [
    cs.PCSGD(step, clip=1.0, noise_std=0.1),
    cs.DiceSGD(step, clip=1.0, error_clip=1.0, noise_std=1.0),
]

figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for rule in rules:
    trace = cs.run(problem, rule, steps=100_000, start=5.0, replicates=10, seed=0)
    times, gaps = trace.iterations[1:], trace.gap(goal)[:, 1:]
    colour = COLOURS[rule.name]
    axes.plot(times, gaps.mean(axis=0), color=colour, linewidth=2, label=f"{rule.name}, mean and range of 10 runs")
    axes.fill_between(times, gaps.min(axis=0), gaps.max(axis=0), color=colour, alpha=0.15, linewidth=0)
bias = cs.clipping_bias(problem, clip=1.0)
axes.axhline(bias, color="black", linestyle="--", label=f"exact clipping bias, {bias:.2f}")

axes.set(xscale="log", yscale="log", ylim=(1e-6, None))
axes.set(xlabel="iteration t", ylabel=r"gap to the goal $\|\theta_t - \theta_{PS}\|^2$")
axes.grid(alpha=0.25)
axes.legend(loc="lower left", frameon=False)
plt.show()
