"""A dump seen as another one: under pairing rules, ranks joined to one process, or two passes as one."""
