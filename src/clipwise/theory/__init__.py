"""The papers' theorems as functions: what is promised of a problem and a rule, before any run."""
