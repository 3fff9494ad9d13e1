"""Collection of rollouts outside compiled programs: a host loop around simulators, and actors in other processes."""
