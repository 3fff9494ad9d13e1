"""Training runs without tuned settings, measured by the share of the published gain over a random policy."""
