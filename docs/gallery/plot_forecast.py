r"""
A forecast before the run
=========================

``cs.tune`` proposes a clip and a step for a budget, and forecasts the remaining gap and its parts. No bar needed a run.
The dots are means over runs of the proposals.
"""

import matplotlib.pyplot as plt
import numpy as np

import clipsilon as cs
from clipsilon.report.palette import PALETTE

problem = cs.Problem(
    cs.datasets.bernoulli(1000, p=0.1),
    loss=cs.losses.Quadratic(a=10.0),
    response=cs.responses.LocationShift(beta=0.05),
    region=cs.regions.Box(-10, 10),
)
goal = cs.stable_point(problem).theta
epsilons = [2.0, 8.0]
proposals = [cs.tune(problem, one, delta=1e-4, steps=1000, preset="PCSGD", start=5.0) for one in epsilons]
runs = [cs.run(problem, one.rule, steps=1000, start=5.0, replicates=500, seed=0) for one in proposals]
gaps = [trace.gap(goal)[:, -1] for trace in runs]

figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
bottom = np.zeros(len(epsilons))
parts = {"bias": "bias", "scatter": "drawing records", "noise": "noise"}
for (part, name), colour in zip(parts.items(), PALETTE, strict=False):
    heights = np.array([getattr(one.forecast, part) for one in proposals])
    axes.bar(range(len(epsilons)), heights, 0.5, bottom, color=colour, alpha=0.75, label=f"forecast: {name}")
    bottom += heights
errors = 2 * np.std(gaps, axis=1) / np.sqrt(500)
style = {"color": "black", "marker": "o", "linestyle": "none", "capsize": 4}
axes.errorbar(range(len(epsilons)), np.mean(gaps, axis=1), errors, label="mean of 500 runs", **style)

axes.set_xticks(range(len(epsilons)), [f"ε = {epsilon:g}" for epsilon in epsilons])
axes.set(xlabel="certified budget at δ = 0.0001", ylabel=r"gap to the goal $\|\theta_T - \theta_{PS}\|^2$")
axes.legend(frameon=False)
plt.show()
