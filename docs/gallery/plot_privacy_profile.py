r"""
One point is not the whole guarantee
====================================

These three rules have noise for the same ε = 1 at δ = 0.00001. That is one point of a curve: for each ε there is a δ,
the chance that something worse happens. The curves meet at the point and part elsewhere. A statement keeps the whole
curve.
"""

import matplotlib.pyplot as plt
import numpy as np

import clipsilon as cs
from clipsilon.report.palette import PALETTE

step = cs.schedules.Constant(0.5)
about = {"records": 60_000, "steps": 240, "delta": 1e-5}
rules = {
    "Gaussian noise, all records in every step": (cs.DPGD(step, lipschitz=1.0, noise_std=1.0), "zero-out"),
    "Gaussian noise, random batches": (cs.DPSGD(step, clip=1.0, noise_std=1.0, batch=250), "zero-out"),
    "Gamma noise, random batches": (cs.GammaDPSGD(step, clip=1.0, scale=1.0, batch=250), "zero-out"),
}

figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
epsilons = np.linspace(0.0, 2.0, 21)
for (name, (rule, adjacency)), colour in zip(rules.items(), PALETTE, strict=False):
    private = cs.calibrate(rule, epsilon=1.0, adjacency=adjacency, **about)
    statement = cs.account(private, adjacency=adjacency, **about)
    axes.plot(epsilons, [statement.delta_at(one) for one in epsilons], color=colour, linewidth=2, label=name)
axes.plot(1.0, 1e-5, "o", color="black", markersize=8, label="what all three were calibrated to")

axes.set(yscale="log", ylim=(1e-16, 1.0), xlabel="ε", ylabel="certified δ(ε)")
axes.grid(alpha=0.25)
axes.legend(loc="lower left", frameon=False, fontsize=9)
plt.show()
