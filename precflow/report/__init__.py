"""One typed model, rendered for people and for machines."""
