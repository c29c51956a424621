r"""
The reaction amplifies the bias
===============================

Records that react to the deployed model move both the goal and the point where clipping stops, and drive them apart. On
this problem of the first paper the bias grows as 1/(1 − aβ)². A larger clip costs less, and one that no gradient
exceeds costs nothing. All numbers are exact: no run is needed.
"""

import matplotlib.pyplot as plt
import numpy as np

import clipsilon as cs
from clipsilon.report.palette import PALETTE

records = np.r_[np.zeros(90), np.ones(10)]


def reacting(beta):
    """Return the problem ½(θ + 10·z)² in which each record moves by −β·θ."""
    return cs.Problem(records, loss=cs.losses.Quadratic(a=10.0), response=cs.responses.LocationShift(beta))


figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.9), layout="constrained", sharey=True)
for clip, colour in zip((1.0, 4.0, 8.0), PALETTE, strict=False):
    rows = cs.bias_table(reacting, [clip], np.linspace(0.0, 0.09, 19))
    left.plot([row.beta for row in rows], [row.bias for row in rows], color=colour, linewidth=2, label=f"c = {clip:g}")
for beta, colour in zip((0.0, 0.05, 0.08), list(PALETTE)[3:], strict=False):
    rows = sorted(cs.bias_table(reacting, np.linspace(0.5, 8.5, 17), [beta]), key=lambda row: row.clip)
    right.plot([row.clip for row in rows], [row.bias for row in rows], color=colour, linewidth=2, label=f"β = {beta:g}")

left.set(yscale="log", xlabel="strength of the reaction β", ylabel=r"bias $\|\theta_\infty - \theta_{PS}\|^2$")
right.set(xlabel="clip c")
for axes in (left, right):
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
plt.show()
