"""Paper 1: clipped SGD under performative prediction."""
