"""Workflows: complete training procedures, and the base classes of their families."""
