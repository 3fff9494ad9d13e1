"""Pictures of what was saved: loaded when they are asked for."""
