"""Thin scikit-learn estimators, and the settings they choose when nobody else does."""
