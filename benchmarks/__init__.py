"""Benchmarks: speed beside peers and floors (``python -m benchmarks.speed``), learning (``... benchmarks.learning``)."""
