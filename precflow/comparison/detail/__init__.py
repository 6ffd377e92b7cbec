"""One pair of tensors in full: values and errors as histograms, the worst elements, and where along each axis they are."""
