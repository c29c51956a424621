"""The softmax loss, for several classes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clipsilon._core.checks import integer, nonnegative
from clipsilon._core.parts import checked, implements, traits
from clipsilon.problems.losses.base import gradient, slopes, value


def _several(name: str, number: int) -> int:
    return integer(name, number, least=2)


@checked(classes=_several, l2=nonnegative)
@traits(labels="class")
class Softmax(NamedTuple):
    """The softmax loss log Σ_k exp⟨x, θ_k⟩ − ⟨x, θ_y⟩ + (l2/2)·‖θ‖² for labels 0, …, classes − 1 (paper 5, section 5).

    θ holds one vector per class, one after the other. With three classes or more, neither clipping the whole gradient
    (`Norm`) nor clipping it class by class (`PerClass`) leaves a gradient field (Theorems 5.3 and D.5;
    `clipsilon.theory.curl`).
    """

    classes: int
    l2: float = 0.0

    def dimension(self, columns: int) -> int:
        """Return the length of θ: the number of classes times the number of columns."""
        return self.classes * columns


@implements(value, Softmax)
def _(loss, theta, features, label):
    highest, total, chosen, square = -np.inf, 0.0, 0.0, 0.0
    for k in range(loss.classes):
        score = 0.0
        for j in range(features.size):
            entry = theta[k * features.size + j]
            score += features[j] * entry
            square += entry * entry
        if k == label:
            chosen = score
        if score > highest:  # the sum is relative to its largest term, so that nothing overflows
            total, highest = total * np.exp(highest - score) + 1.0, score
        else:
            total += np.exp(score - highest)
    return highest + np.log(total) - chosen + 0.5 * loss.l2 * square


@implements(slopes, Softmax)
def _(loss, scores, label):
    highest, total = -np.inf, 0.0
    for k in range(loss.classes):
        highest = max(highest, scores[k])
    for k in range(loss.classes):
        scores[k] = np.exp(scores[k] - highest)
        total += scores[k]
    for k in range(loss.classes):
        scores[k] = scores[k] / total - (1.0 if k == label else 0.0)


@implements(gradient, Softmax)
def _(loss, theta, features, label, out):
    # The first entry of each class's block of `out` holds its score until all scores are known.
    columns = features.size
    scores = out[::columns]
    for k in range(loss.classes):
        score = 0.0
        for j in range(columns):
            score += features[j] * theta[k * columns + j]
        scores[k] = score
    slopes(loss, scores, label)
    for k in range(loss.classes):
        rate = scores[k]
        for j in range(columns):
            out[k * columns + j] = rate * features[j] + loss.l2 * theta[k * columns + j]
