"""Paper 3's experiments at a size that runs anywhere: data, models and one training loop."""
