"""Evidence about numbers that left the range of their type: NaN, infinity, saturation, and steps that were skipped for them."""
