"""precflow shows whether a PyTorch model that moved to another device still computes the same numbers."""

__version__ = "0.1.0"
