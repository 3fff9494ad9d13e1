"""Hyperparameter sweeps: settings that differ only in numbers are trained in parallel in one program."""
