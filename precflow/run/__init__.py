"""From a composed recipe to sealed stage instances: plan, store, history, progress."""
