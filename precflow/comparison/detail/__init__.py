"""One pair of tensors in full, for reports: histograms, the worst elements, and where along each axis the error is."""
