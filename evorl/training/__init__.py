"""Training of a run in its folder: checks, recorders, checkpoints, stopping and error messages."""
