"""Sweeps: many settings of one training, those of one structure side by side in one program."""
