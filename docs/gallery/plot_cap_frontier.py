r"""
What a residual cap costs
=========================

With a cap C3 on what a record adds to the hidden error, DiceSGD has a proven guarantee. A small cap needs less
noise, but feeds back less; at C3 = C1 it feeds back nothing, and is plain clipping. Without a cap a guarantee takes a
hundred times the noise. Plain clipping needs far less: the proof for DiceSGD gains nothing from hiding who was drawn.
"""

import matplotlib.pyplot as plt
import numpy as np

import clipsilon as cs
from clipsilon.report.palette import COLOURS, PALETTE

_, _, green, pink, *_ = PALETTE
about = {"epsilon": 1.0, "delta": 1e-6, "records": 100_000, "steps": 100_000}


def noise(how="certified", **options):
    """Return the noise that DiceSGD needs for ε = 1."""
    rule = cs.DiceSGD(cs.schedules.Constant(1.0), clip=1.0, error_clip=1.0, noise_std=1.0, **options)
    return cs.calibrate(rule, how=how, **about).noise.std


caps = np.geomspace(1.01, 1000.0, 13)
plain = cs.calibrate(cs.PCSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=1.0), **about).noise.std
figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
blue, dashed = COLOURS["DiceSGD"], {"linestyle": "--", "linewidth": 1.5}
axes.axhline(noise(), color=blue, label="no cap", **dashed)
axes.plot(caps, [noise(residual_cap=cap) for cap in caps], color=blue, linewidth=2, label="random batches of one")
once = [noise(residual_cap=cap, sampling="single-pass") for cap in caps]
axes.plot(caps, once, color=green, linewidth=2, label="a single pass, each record once")
axes.axhline(plain, color=COLOURS["PCSGD"], label="no feedback (PCSGD)", **dashed)
axes.axhline(noise(how="paper"), color=pink, label="published for DiceSGD: not enough", **dashed)

axes.set(xscale="log", yscale="log", xlabel="residual cap $C_3$, in clips $C_1$ = $C_2$ = 1")
axes.set(ylabel=r"noise for a certified $\varepsilon$ = 1", title=r"100,000 records and steps, $\delta$ = 0.000001")
axes.grid(alpha=0.25)
figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
plt.show()
