"""Measurements of other packages, run by child processes in the virtual environment of each package."""
