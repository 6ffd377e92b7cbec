"""A side that runs in ONNX Runtime: its graph is exported or given, runs with all tensors in sight, and becomes a dump."""
