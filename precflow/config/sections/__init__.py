"""Sections of recipes and standards that have checks of their own: curves, standards, what-ifs."""
