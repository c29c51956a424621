"""Attacks that measure what a rule reveals."""
