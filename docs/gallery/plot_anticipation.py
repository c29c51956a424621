r"""
What anticipating the reaction gains
====================================

People with label 1 move against the deployed model. Retraining ends, if it ends, on the stable point; a
loss that anticipates the reaction leads to the performative optimum, whose loss is smaller. The dashed line is the loss
that the model of people who do not react would have once they do.
"""

import matplotlib.pyplot as plt
import numpy as np

import clipsilon as cs
from clipsilon.report.palette import PALETTE

blue, vermilion, *_ = PALETTE
features, labels = cs.datasets.logistic(5_000, 3, seed=1)
loss = cs.losses.Logistic()


def loss_when_deployed(theta, strength):
    """Return the mean loss once people have reacted to θ."""
    moved = features - strength * np.outer(labels, theta)
    return np.mean(np.logaddexp(0, moved @ theta) - labels * (moved @ theta))


strengths, theta_size = np.linspace(0.0, 0.6, 7), features.shape[1]
unaware = cs.stable_point(cs.Problem(features, labels, loss=loss)).theta
losses = []
for strength in strengths:
    still, moving = np.zeros((theta_size, theta_size)), strength * np.eye(theta_size)
    response = cs.responses.MatrixShift([still, moving])
    models = [unaware]
    for each in (loss, cs.losses.Anticipating(loss, response)):
        models.append(cs.stable_point(cs.Problem(features, labels, loss=each, response=response)).theta)
    losses.append([loss_when_deployed(theta, strength) for theta in models])

figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for name, line, style in (
    ("trained as if nobody reacted", 0, {"color": "black", "linestyle": "--"}),
    ("stable point", 1, {"color": vermilion, "marker": "o"}),
    ("performative optimum", 2, {"color": blue, "marker": "o"}),
):
    axes.plot(strengths, np.array(losses)[:, line], linewidth=2, label=name, **style)
axes.set(xlabel="strength of the reaction", ylabel="mean loss after the reaction")
axes.grid(alpha=0.25)
axes.legend(frameon=False)
plt.show()
