"""Benchmarks of speed, learning, default settings and GPU programs; mutation tests: ``python -m benchmarks.<name>``."""
