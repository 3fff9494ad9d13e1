"""Shared building blocks: formulas on arrays, optimizers, pytrees, random keys, devices and terminal text."""
