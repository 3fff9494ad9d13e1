"""Runs on disk: folders, checkpoints of the whole state, and what a run tells its recorders.

Libraries are imported when they are needed, not here.
"""
