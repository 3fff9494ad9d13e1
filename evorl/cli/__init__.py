"""The command line. This module imports nothing, so that commands that list, watch or supervise start without JAX."""
