"""Paper 3: DiceSGD."""
