"""The fused pass compiled by numba: the same summary as the NumPy one, which is its oracle in tests, several times faster.

Only ``engine`` is imported from outside, and it imports the rest when a comparison is large enough to be worth it.
"""
