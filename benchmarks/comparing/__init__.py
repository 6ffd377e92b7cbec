"""The parts of ``compare.py``: pairs of tensors, the kernels' race, two dumps from end to end, the peer, and tables."""
