"""Recipes: the schema, composing YAML and command line into one frozen value, and checking it."""
