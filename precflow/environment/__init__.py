"""Whether two sides can be compared at all: seeds, weights, inputs, versions, variables, requirements."""
