"""Mutation testing: classic faults of reinforcement learning and evolution, and the tests that notice them."""
