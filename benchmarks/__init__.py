"""Benchmarks: of speed (``python -m benchmarks.speed``) and of learning (``python -m benchmarks.learning``)."""
