"""Runs workflows: compiled programs over seeds and devices, the training loop on the host, and checks before a run."""
