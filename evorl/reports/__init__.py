"""Reports on one or many runs: numbers with confidence intervals, and a self-contained HTML page."""
