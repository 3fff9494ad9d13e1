"""Simulators that run outside of JAX, on the host, and the vector environment that steps them."""
