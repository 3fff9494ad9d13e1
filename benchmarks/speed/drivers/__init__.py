"""Measurements of this package, run by child processes: one module per kind of measurement."""
