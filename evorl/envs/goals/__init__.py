"""Goals: reward functions, goal setters that choose goals, and small environments with goals."""
