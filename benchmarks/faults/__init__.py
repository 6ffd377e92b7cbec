"""Known faults on small models, each on top of another chip: what a diagnosis finds, names, explains and invents."""
