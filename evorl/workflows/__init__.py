"""Workflows: complete training procedures, and the families they come in."""
