"""Dumps as the judge sees them, and the requests that make them."""
