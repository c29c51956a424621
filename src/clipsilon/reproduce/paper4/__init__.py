"""Paper 4: LDP-SGD."""
