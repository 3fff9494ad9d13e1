"""Hyperparameter sweeps and Optuna searches; ``sweep=`` trains settings of equal program structure in parallel."""
