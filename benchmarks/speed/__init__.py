"""Benchmarks of speed, memory and starting: ``python -m benchmarks.speed [names...]``."""
