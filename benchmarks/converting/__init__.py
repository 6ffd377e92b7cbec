"""What benchmarks/onnx.py needs: networks, faults that are planted into their graphs, and the runs."""
