"""Metrics, one a module: its row as the constant ``METRIC``, and ``compute``, which takes it from a summary of both tensors."""
