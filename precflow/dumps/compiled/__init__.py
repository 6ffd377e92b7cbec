"""The sums behind content ids, compiled by numba; NumPy's in ``dumps.digest`` are the oracle in tests, and always there."""
