"""Base agents of algorithm families: actor-critics, action values with a target network, policies without critic."""
