"""Algorithms, one file each: hyperparameters, losses and the order of updates."""
