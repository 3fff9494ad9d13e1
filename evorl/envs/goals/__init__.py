"""Goals: reward functions, goal setters, and small goal environments."""
