"""Limits, standards, accepted differences, and the verdict."""
