"""Computing recorded operator calls again: in float64 on the CPU, or on a device in the operator's own element type."""
