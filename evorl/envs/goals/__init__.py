"""Goals: what reaching one is worth, who chooses them, and small environments of our own with goals."""
