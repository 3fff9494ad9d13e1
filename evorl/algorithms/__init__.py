"""Algorithms, one file each, with their hyperparameters, losses and update order."""
