r"""
What the hidden error needs in order to stay small
==================================================

DiceSGD feeds back at most C2 of its error e per step. At the goal, clipping takes a fixed amount away on average: here
0.8 per step. If C2 is larger, the error settles. If it is smaller, more comes in than goes out: the error grows
without bound, and the model never reaches its goal.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import clipsilon as cs
from clipsilon.report.palette import PALETTE

records = np.r_[np.zeros(900), np.ones(100)]
problem = cs.Problem(records, loss=cs.losses.Quadratic(a=10.0), response=cs.responses.LocationShift(beta=0.05))
goal = cs.stable_point(problem).theta[0]
gradients = goal + 10.0 * (records - 0.05 * goal)
taken = abs(np.clip(gradients, -1.0, 1.0).mean())  # the mean gradient itself is zero at the goal

figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for error_clip, colour in zip((0.5, 1.0, 2.0), list(PALETTE)[1:], strict=False):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library warns about an error_clip below clip; this picture shows why
        rule = cs.DiceSGD(cs.schedules.InverseTime(10, 100), clip=1.0, error_clip=error_clip, noise_std=1.0)
    trace = cs.run(problem, rule, steps=100_000, start=5.0, replicates=10, seed=0)
    size = np.sqrt((trace.error[:, 1:] ** 2).sum(axis=2).mean(axis=0))
    end = trace.gap([goal])[:, -1].mean()
    label = f"$C_2$ = {error_clip:g}; the run ends at a gap of {end:.2g}"
    axes.plot(trace.iterations[1:], size, color=colour, linewidth=2, label=label)

axes.set_title(f"$C_1$ = 1; at the goal clipping takes {taken:.1f} a step", fontsize=10)
axes.set(xscale="log", yscale="log", xlabel="iteration t", ylabel=r"size of the hidden error, root mean $\|e_t\|^2$")
axes.grid(alpha=0.25)
axes.legend(loc="upper left", frameon=False)
plt.show()
