"""Attacks that measure what a rule really gives away."""
