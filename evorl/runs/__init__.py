"""Runs on disk: folders, checkpoints of the whole state, and the interface of recorders.

Libraries are imported on demand, not here.
"""
