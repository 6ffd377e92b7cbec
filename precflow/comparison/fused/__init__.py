"""One pass over a pair of tensors, block by block, into a small summary from which every metric follows."""
