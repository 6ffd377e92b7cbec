"""The models and inputs that a side runs: the shipped factories, and finding those of the user."""
