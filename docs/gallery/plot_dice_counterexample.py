r"""
DiceSGD's published guarantee fails
===================================

All gradients are zero except those of one record, which are long. Once that record is drawn, its residual stays in the
error e, which gets no noise, and leaves at C2 per step. Whoever adds up the second half of the updates can tell that it
is there. At the published noise the true ε is tens to thousands of times the claimed one. Lines are formulas; the cross
is an attack.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import ndtr

import clipsilon as cs
from clipsilon.report.palette import PALETTE

blue, vermilion, green, pink, *_ = PALETTE
records, delta = 10_000, 1e-4


def least_epsilon(claimed, steps):
    """Return the ε that the best threshold on the sum of the second half rules out."""
    shift = records * claimed / np.sqrt(192 * np.log(1 / delta))
    drawn = 1 - (1 - 1 / records) ** (steps / 2)  # in the first half
    threshold = np.linspace(0.0, shift + 5.0, 2001)
    found = drawn * ndtr(shift - threshold) + (1 - drawn) * ndtr(-threshold)
    return np.log(np.max((found - delta) / ndtr(-threshold)))


def published(claimed, steps=records):
    """Return the rule with the noise of paper 3's Theorem 3.8."""
    rule = cs.DiceSGD(cs.schedules.Constant(1.0), clip=1.0, error_clip=1.0, noise_std=1.0)
    return cs.calibrate(rule, claimed, delta, records, steps, how="paper")


figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
claims = np.geomspace(0.001, 0.1, 13)
certified = [cs.account(published(claim), records, records, delta).certified for claim in claims]
axes.plot(claims, certified, color=green, linewidth=2, label="certified: the true ε is below")
for steps, colour in ((10**6, vermilion), (10**3, pink)):
    truth = [least_epsilon(claim, steps) for claim in claims]
    axes.plot(claims, truth, color=colour, linewidth=2, label=f"the true ε is above, T = {steps:,}")
audit = cs.audit(published(0.03), records, records, delta, runs=300, seed=0, progress=False)
axes.plot(0.03, audit.lower_bound, "X", color="black", markersize=9, label="audit of 300 runs a side, T = 10,000")
axes.plot(claims, claims, "--", color=blue, linewidth=2, label="claimed: the true ε is below")
axes.set(xscale="log", yscale="log", xlabel="claimed ε (10,000 records, δ = 0.0001)", ylabel="ε")
axes.grid(alpha=0.25)
figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
plt.show()
