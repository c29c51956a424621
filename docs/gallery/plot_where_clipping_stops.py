r"""
Where clipping stops
====================

Training stops where the mean gradient is zero. Clipping shortens some gradients and leaves others as they are, so the
mean of what is left is zero at another model. Here nine records in ten pull one way gently, and one in ten pulls the
other way hard. Clipping takes most of the hard pull away, and training stops short of the goal.
"""

import matplotlib.pyplot as plt
import numpy as np

import clipsilon as cs
from clipsilon.report.palette import PALETTE

blue, vermilion, green, *_ = PALETTE
clip, a = 1.0, 10.0
records = np.r_[np.zeros(90), np.ones(10)]
problem = cs.Problem(records, loss=cs.losses.Quadratic(a), response=cs.responses.LocationShift(beta=0.0))

theta = np.linspace(-2.0, 1.0, 301)
gradients = theta + a * records[:, None]  # of ½(θ + a·z)², one row per record
curves = {"mean gradient": gradients, f"mean of gradients clipped to {clip:g}": np.clip(gradients, -clip, clip)}

figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for (name, values), colour in zip(curves.items(), (blue, vermilion), strict=True):
    axes.plot(theta, values.mean(axis=0), color=colour, linewidth=2, label=name)
axes.axhline(0.0, color="black", linewidth=0.8)

# The two zeros, from the library.
goal, stop = cs.stable_point(problem).theta[0], cs.clipped_point(problem, clip).theta[0]
axes.plot(goal, 0.0, "o", color=blue, markersize=9)
axes.plot(stop, 0.0, "o", color=vermilion, markersize=9)
axes.annotate(r"goal $\theta_{PS}$", (goal, 0), (0, -20), textcoords="offset points", ha="center")
axes.annotate(r"clipping stops here, $\theta_\infty$", (stop, 0), (6, -20), textcoords="offset points")
axes.annotate("", (stop, -1.0), (goal, -1.0), arrowprops={"arrowstyle": "<->", "color": green})
axes.text((goal + stop) / 2, -1.2, f"√bias = {abs(goal - stop):.2f}", color=green, ha="center")

axes.set(xlabel=r"model $\theta$", ylabel="pull on the model", ylim=(-1.4, 2.2))
axes.legend(loc="upper left", frameon=False)
plt.show()
