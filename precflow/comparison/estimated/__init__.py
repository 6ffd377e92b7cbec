"""Metrics of pairs for which not both tensors were kept: exact, estimated from sketches, or bounded by statistics."""
