r"""
Rank counts, not dimension
==========================

Columns of zeros change no prediction, and neither does Gaussian noise on their coefficients: the private model loses as
much with 3 columns as with 1,000. This is not so for noise of Gamma length, which grows with the number of
columns, also in the directions that count.
"""

import matplotlib.pyplot as plt
import numpy as np

import clipsilon as cs
from clipsilon.report.palette import PALETTE

rng = np.random.default_rng(0)
x = rng.uniform(-1.0, 1.0, (1000, 3))
y = (rng.random(1000) < 1 / (1 + np.exp(-x @ [3.0, -2.0, 1.0]))).astype(float)
about = {"epsilon": 4.0, "delta": 1e-5, "records": 1000, "steps": 100, "adjacency": "zero-out"}
step = cs.schedules.Constant(0.5)
rules = {
    "Gaussian noise": cs.calibrate(cs.DPSGD(step, clip=1.0, noise_std=1.0, batch=100), **about),
    "Gamma noise": cs.calibrate(cs.GammaDPSGD(step, clip=1.0, scale=1.0, batch=100), **about),
}
narrow = cs.Problem(x, y, loss=cs.losses.Logistic())
least = cs.metrics.performative_risk(narrow, cs.stable_point(narrow).theta)

figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
columns = [3, 10, 30, 100, 300, 1000]
for (name, rule), colour in zip(rules.items(), PALETTE, strict=False):
    found = []
    for width in columns:
        problem = cs.Problem(np.pad(x, ((0, 0), (0, width - 3))), y, loss=cs.losses.Logistic())
        ends = cs.run(problem, rule, steps=100, replicates=60, seed=1).output
        found.append([cs.metrics.performative_risk(narrow, end[:3]) - least for end in ends])
    error = 2 * np.std(found, axis=1) / np.sqrt(60)
    axes.errorbar(columns, np.mean(found, axis=1), error, color=colour, marker="o", linewidth=2, capsize=3, label=name)

axes.set(
    xscale="log", ylim=(0, None), xlabel="columns, of which 3 are not zero", ylabel="excess loss of the private model"
)
axes.set_xticks(columns, [f"{one:,}" for one in columns])
axes.minorticks_off()
axes.grid(alpha=0.25)
axes.legend(loc="upper left", frameon=False, title="certified ε = 4")
plt.show()
