"""Benchmarks of learning: ``python -m benchmarks.learning [names...]``."""
