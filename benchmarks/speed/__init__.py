"""Benchmarks of speed, memory and start-up: ``python -m benchmarks.speed [names...]``."""
