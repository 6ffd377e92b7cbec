"""The other program: runs a workload in the team's own interpreter and records it. Standard library and torch only."""
