"""Sections of recipes and standards that have checks of their own: limits, pairing, curves, standards, what-ifs, the store."""
