"""Network modules: torsos, which are stacks of layers, and heads for policies, values and action values."""
