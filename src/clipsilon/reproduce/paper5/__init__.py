"""Paper 5: private gradient descent for generalised linear models."""
