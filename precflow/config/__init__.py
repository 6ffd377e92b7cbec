"""The schema of a recipe, and the way from YAML and command line to one frozen value."""
