r"""
Claimed, certified, audited
===========================

Three numbers for one rule. A paper claims an ε; an accountant certifies one, which is proven; an audit demonstrates one
by attacking runs. The true ε lies between audited and certified. Where the audited ε exceeds the claim, the claim is
false. An audit that shows nothing, as in the last row, proves nothing.
"""

import matplotlib.pyplot as plt

import clipsilon as cs
from clipsilon.report.palette import PALETTE

blue, vermilion, green, *_ = PALETTE
about = {"records": 100, "steps": 100, "delta": 1e-3}
step = cs.schedules.Constant(1.0)
descent = cs.PCSGD(step, clip=1.0, noise_std=1.0, sampling="full")
dice = cs.DiceSGD(step, clip=1.0, error_clip=1.0, noise_std=1.0)
capped = cs.DiceSGD(step, clip=1.0, error_clip=1.0, noise_std=1.0, residual_cap=2.0)
rules = {
    "gradient descent,\npublished noise for ε = 1": cs.calibrate(descent, 1.0, how="paper", **about),
    "gradient descent,\ncalibrated to ε = 1": cs.calibrate(descent, 1.0, **about),
    "DiceSGD,\npublished noise for ε = 1": cs.calibrate(dice, 1.0, how="paper", **about),
    "DiceSGD with a cap,\ncalibrated to ε = 1": cs.calibrate(capped, 1.0, **about),
}

figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
for row, rule in enumerate(rules.values()):
    audit = cs.audit(rule, **about, runs=1000, seed=0, progress=False)
    lowest, highest, claimed = audit.lower_bound, audit.statement.certified, audit.statement.claimed
    axes.plot([lowest, highest], [row, row], color="#cccccc", linewidth=6, solid_capstyle="butt", zorder=1)
    axes.plot(lowest, row, ">", color=vermilion, markersize=9, label="audited: at least" if row == 0 else None)
    axes.plot(highest, row, "<", color=green, markersize=9, label="certified: at most" if row == 0 else None)
    axes.plot(claimed, row, "d", color=blue, markersize=8, label="claimed by a paper" if row == 0 else None)

axes.set_xscale("symlog", linthresh=1.0, linscale=1.0)
axes.set_xticks([0, 0.5, 1, 2, 5, 10, 20, 50, 100], ["0", "0.5", "1", "2", "5", "10", "20", "50", "100"])
axes.set_yticks(range(len(rules)), rules)
axes.set(xlabel="ε at δ = 0.001, one of 100 records replaced", ylabel="rule", xlim=(-0.1, 120), ylim=(3.5, -0.5))
axes.grid(alpha=0.25, axis="x")
figure.legend(loc="outside lower center", ncols=3, frameon=False)
plt.show()
