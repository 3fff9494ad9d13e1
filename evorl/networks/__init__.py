"""Network modules: torsos of layers, and heads that give policies, values and action values."""
