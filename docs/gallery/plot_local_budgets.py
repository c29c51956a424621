r"""
Every user has their own budget
===============================

In local privacy each user adds noise on their own device, for a budget μ that they choose, and takes part once. The
larger the budgets, the closer the model gets to the one that all records would give without noise. With these long
steps the average of all iterates is closer than the last. A mean budget of 1 gains almost nothing.
"""

import matplotlib.pyplot as plt
import numpy as np

import clipsilon as cs
from clipsilon.report.palette import PALETTE

blue, vermilion, *_ = PALETTE
users = 20_000
problem = cs.Problem(*cs.datasets.logistic(users, 3, seed=1), loss=cs.losses.MallowsLogistic())
goal = cs.stable_point(problem).theta
spread = np.random.default_rng(0).uniform(0.5, 1.5, users)  # some users are more cautious than others

means = np.array([1.0, 2.0, 4.0, 8.0])
last, average = [], []
for mean in means:
    rule = cs.LDPASGD(cs.schedules.Power(0.2, 1 / 3), budget=mean * spread)
    trace = cs.run(problem, rule, steps=users, replicates=20, seed=0)
    last.append(trace.gap(goal, of="theta")[:, -1])
    average.append(trace.gap(goal, of="average")[:, -1])

figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for name, gaps, colour in (("last iterate", last, vermilion), ("average of all iterates", average, blue)):
    middle, error = np.mean(gaps, axis=1), 2 * np.std(gaps, axis=1) / np.sqrt(20)
    axes.errorbar(means, middle, error, color=colour, marker="o", linewidth=2, capsize=3, label=name)
axes.axhline(goal @ goal, color="black", linestyle="--", linewidth=1, label="not to train at all")

axes.set(
    xscale="log",
    yscale="log",
    xlabel="mean budget μ of 20,000 users",
    ylabel=r"gap to the best model $\|\theta - \theta^*\|^2$",
)
axes.set_xticks(means, [f"{mean:g}" for mean in means])
axes.minorticks_off()
axes.grid(alpha=0.25)
axes.legend(loc="lower left", frameon=False)
plt.show()
