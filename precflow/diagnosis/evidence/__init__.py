"""Measured evidence for the rules: small functions of tensors, arguments and facts."""
