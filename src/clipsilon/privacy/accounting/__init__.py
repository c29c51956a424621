"""Privacy profiles and their composition."""
