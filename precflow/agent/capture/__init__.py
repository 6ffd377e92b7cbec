"""Capture: the hooks and the function mode that see a model run, and the records that they make of it."""
