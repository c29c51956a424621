"""Choose a rule, its thresholds and its step before any budget is spent."""

from clipsilon.theory.tuning.proposal import Proposal, tune

__all__ = ["Proposal", "tune"]
