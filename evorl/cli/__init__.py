"""The command line. Nothing is imported here: commands that list, watch or supervise do without JAX."""
