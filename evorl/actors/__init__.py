"""Collecting on the host: a loop around simulators, and actors in other processes that collect beside the learner."""
