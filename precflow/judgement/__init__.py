"""Limits and standards, the status of each record, and the verdict of the run."""
