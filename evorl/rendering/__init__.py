"""Rendering of saved or replayed episodes; its modules are imported where they are needed."""
