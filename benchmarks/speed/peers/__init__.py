"""What a benchmark's child process measures of other packages; run by the Python of their own virtual environment."""
