"""Network modules: torsos (stacks of layers), and heads for policies, values and action values."""
