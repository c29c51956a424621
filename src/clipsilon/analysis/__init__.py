"""What follows from a problem without a run: fixed points, bias, metrics."""
