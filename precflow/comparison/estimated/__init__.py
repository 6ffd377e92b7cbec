"""Metrics of pairs of which not both tensors were kept: exact, estimated, or bounded."""
