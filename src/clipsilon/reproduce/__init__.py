"""Every figure and table of the papers, and ours: one module each, a grid and what to draw of it."""

from clipsilon.reproduce.base import EXPERIMENTS, Experiment, Finding, Lab, Result, experiment

__all__ = ["EXPERIMENTS", "Experiment", "Finding", "Lab", "Result", "experiment"]
