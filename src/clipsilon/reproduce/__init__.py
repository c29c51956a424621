"""Every figure and table of the papers, and experiments of our own: one module each, with its runs and charts."""

from clipsilon.reproduce.base import EXPERIMENTS, Experiment, Finding, Lab, Result, experiment

__all__ = ["EXPERIMENTS", "Experiment", "Finding", "Lab", "Result", "experiment"]
