"""Environments that are no JAX programs: simulators on the host, and the bridge by which workflows step them."""
