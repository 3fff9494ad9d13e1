"""Collection of rollouts outside compiled programs: a host loop for simulators, and actors in other processes."""
