"""Apps: a folder with a simulator in plain Python and one file of settings, made and run by commands."""
