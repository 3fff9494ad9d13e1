"""Goals: reward functions of goals, goal setters, and small goal environments."""
