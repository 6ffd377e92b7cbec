"""What ties a source tree to CUDA: findings with file and line, what to do about each, and a patch. Imports no torch."""
