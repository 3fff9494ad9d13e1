"""What those see who watch: the live page of runs, their metrics, and the metrics that clients send."""
