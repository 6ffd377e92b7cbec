"""Whether two sides can be compared at all: facts, variables, requirements, reproduction."""
