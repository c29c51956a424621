"""Training code of strangers: plain DP-SGD in NumPy, with and without a bug, and its exact ε."""

import math

import numpy as np

from clipsilon.privacy.accounting import gaussian

STEPS, RECORDS, DELTA = 5, 40, 1e-5


def table(records=RECORDS, columns=3, seed=0):
    """Return features and binary labels that depend on the first column."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(records, columns))
    return features, (features[:, 0] + rng.normal(size=records) > 0).astype(int)


def exact_epsilon(multiplier, adjacency, delta=DELTA):
    """Return the ε of `dp_sgd`: five Gaussian mechanisms on sums that one record changes by 1, or by 2 if replaced."""
    return gaussian.epsilon(math.sqrt(STEPS) * (2 if adjacency == "replace-one" else 1) / multiplier, delta)


class Logistic:
    """A fitted model, with what scikit-learn's have."""

    classes_ = np.array([0, 1])

    def __init__(self, theta):
        self.theta = theta

    def predict_proba(self, features):
        ones = 1 / (1 + np.exp(-features @ self.theta))
        return np.stack([1 - ones, ones], axis=1)


def dp_sgd(rng, multiplier, batch=RECORDS, noise_divisor=RECORDS):
    """Return a function that trains by full batches, gradients clipped to 1, and noise on their sum.

    The mean is the sum divided by the constant `batch`; a bug is a `noise_divisor` that is not `batch`.
    """

    def train(features, labels):
        theta = np.zeros(features.shape[1])
        for _ in range(STEPS):
            gradients = (1 / (1 + np.exp(-features @ theta)) - labels)[:, np.newaxis] * features
            lengths = np.maximum(1.0, np.linalg.norm(gradients, axis=1, keepdims=True))
            noise = multiplier * rng.normal(size=theta.size) / noise_divisor
            theta -= (gradients / lengths).sum(axis=0) / batch + noise
        return Logistic(theta)

    return train
