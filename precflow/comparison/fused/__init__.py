"""Reading a pair of tensors once, block by block, into a small summary from which every metric follows (NumPy)."""
