"""The engine: the compiled loop, and everything that runs it."""

from clipwise.engine.checkpoint import CheckpointError
from clipwise.engine.runner import DivergenceError, Interrupted, run
from clipwise.engine.trace import Trace

__all__ = ["CheckpointError", "DivergenceError", "Interrupted", "Trace", "run"]
