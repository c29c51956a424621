r"""
What a budget buys
==================

A private logistic regression with nothing tuned, on 400 generated records of five columns. A small ε buys little more
than guessing. From about ε = 1 on, privacy costs hardly any accuracy here. More records move the curve to the left.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

from clipsilon.estimators import PrivateLogisticRegression
from clipsilon.report.palette import PALETTE

rng = np.random.default_rng(0)
x = rng.normal(size=(4400, 5))
y = (x @ [2.0, -1.0, 0.5, 0.0, 0.0] + rng.logistic(size=4400) > 0).astype(int)
train, test = slice(0, 400), slice(400, 4400)
epsilons, seeds = [0.03, 0.1, 0.3, 1.0, 3.0], range(5)


def accuracy(epsilon, seed):
    """Return the accuracy on records that the model has not seen."""
    model = PrivateLogisticRegression(epsilon=epsilon, delta=1e-5, classes=[0, 1], random_state=seed)
    return model.fit(x[train], y[train]).score(x[test], y[test])


scores = np.array([[accuracy(epsilon, seed) for seed in seeds] for epsilon in epsilons])
best = LogisticRegression().fit(x[train], y[train]).score(x[test], y[test])

blue = next(iter(PALETTE))
figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
axes.plot(epsilons, scores, "o", color=blue, alpha=0.35, markersize=4)
axes.plot(epsilons, scores.mean(axis=1), color=blue, linewidth=2, label=f"private, mean of {len(seeds)} fits")
axes.axhline(best, color="black", linestyle="--", linewidth=1, label="without privacy")
axes.axhline(0.5, color="#7f7f7f", linestyle=":", label="guessing")

axes.set(xscale="log", xlabel="certified ε at δ = 0.00001", ylabel="accuracy on new records")
axes.set_xticks(epsilons, [f"{one:g}" for one in epsilons])
axes.minorticks_off()
axes.grid(alpha=0.25)
axes.legend(loc="center right", frameon=False)
plt.show()
