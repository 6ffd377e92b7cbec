"""What a side can run without code of its own: factories of shipped models, and finding those of the user."""
