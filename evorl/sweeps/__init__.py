"""Hyperparameter sweeps, which train settings that differ only in numbers in parallel, and Optuna searches."""
