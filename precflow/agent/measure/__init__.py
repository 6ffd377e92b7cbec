"""What is kept of one tensor: content id, statistics, sketch or the tensor itself, with few copies to the host."""
