"""Data, models and one training loop for paper 3's experiments, at a size that runs on any computer."""
