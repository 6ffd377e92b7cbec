"""The stages of the second pass of escalating capture: which calls it records, and both sides recorded once more."""
