"""The checksums behind content ids, compiled by numba; without numba `dumps.digest` computes the same with NumPy."""
