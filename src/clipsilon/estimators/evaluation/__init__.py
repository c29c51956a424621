"""Private evaluation: the quality of a model on people's rows, with confidence intervals, within a privacy budget.

A noisy histogram of the scores in which each person has one unit of weight (`histograms`, `tree`) on public cells
(`grids`); all figures and curves are computed from it (`ratios`, `auc`, `curves`). Or the AUC alone, from noisy sums
over triples of people (`triples`). docs/proofs.md has the proofs.
"""

from clipsilon.estimators.evaluation.curves import Curve
from clipsilon.estimators.evaluation.evaluate import private_scores
from clipsilon.estimators.evaluation.ratios import Figure
from clipsilon.estimators.evaluation.result import PrivateScores

__all__ = ["Curve", "Figure", "PrivateScores", "private_scores"]
