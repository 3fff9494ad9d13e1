"""Training of a run in its folder: preparation, recorders, checkpoints, stopping and error messages."""
