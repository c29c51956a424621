"""The papers' theorems as functions, one module a paper."""
