"""Apps: folders with a plain-Python simulator and one settings file, ``app.yaml``; created and run by commands."""
