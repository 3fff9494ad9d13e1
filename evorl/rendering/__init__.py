"""Rendering of saved or replayed episodes; modules are imported on demand."""
