"""Training of a run in its folder: preparation, recorders, checkpoints, stops and error messages."""
