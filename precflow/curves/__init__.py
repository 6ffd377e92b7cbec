"""Curves of a training run, such as its loss: reading them from logs, joining both sides by step, and how far they are apart.

NumPy alone; no torch, and nothing is run.
"""
