"""Simulators on the host, and the bridge through which workflows step them."""
