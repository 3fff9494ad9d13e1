"""Goal environments of our own: small, documented, and compiled."""
