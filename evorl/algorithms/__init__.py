"""Algorithms, one file each: parameters, losses, the order of updates."""
