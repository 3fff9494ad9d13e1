"""Runs on disk: run folders, checkpoints, packed policies, and the interface of recorders.

This file imports nothing, so that programs that only read run folders do not load JAX.
"""
