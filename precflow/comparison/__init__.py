"""Pairs of records, one fused pass over each pair, and metrics as functions of its summary."""
