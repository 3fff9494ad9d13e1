"""Hyperparameter sweeps and Optuna searches; ``sweep=`` trains settings that differ only in numbers in parallel."""
