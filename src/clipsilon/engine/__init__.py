"""The engine: the compiled loop, and everything that runs it."""

from clipsilon.engine.checkpoint import CheckpointError
from clipsilon.engine.runner import DivergenceError, Interrupted, run
from clipsilon.engine.trace import Trace

__all__ = ["CheckpointError", "DivergenceError", "Interrupted", "Trace", "run"]
