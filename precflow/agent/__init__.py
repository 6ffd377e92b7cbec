"""The agent: the program that runs a model in the user's own interpreter and writes a dump. Standard library and torch only."""
