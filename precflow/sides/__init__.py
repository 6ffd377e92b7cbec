"""The two sides as processes: their interpreters, starting an agent there, and the agent as one file."""
