"""Config parsing: nodes from nested mappings, checks of values, suggestions for unknown names, and safe imports."""
