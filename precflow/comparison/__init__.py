"""Comparing two dumps: pairing records, reading both tensors of a pair once, and computing metrics."""
