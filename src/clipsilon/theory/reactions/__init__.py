"""How people react to a model, estimated from what they sent under several deployed models."""

from clipsilon.theory.reactions.estimate import EstimatedResponse, estimate
from clipsilon.theory.reactions.explore import Exploration, explore
from clipsilon.theory.reactions.logs import Deployment

__all__ = ["Deployment", "EstimatedResponse", "Exploration", "estimate", "explore"]
