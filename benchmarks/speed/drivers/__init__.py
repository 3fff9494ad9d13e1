"""What a benchmark's child process measures of this package: one module for each kind of measurement."""
