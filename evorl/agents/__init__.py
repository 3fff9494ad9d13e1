"""What agents of a family share: actor-critics, action values with a target network, policies alone."""
