"""A user's training script as the workload: run unchanged, watched from outside, recorded step by step."""
