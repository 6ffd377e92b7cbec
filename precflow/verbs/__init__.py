"""What can be done with recipes and machines besides running: one verb a file."""
