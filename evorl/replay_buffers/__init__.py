"""Replay buffers: one ring engine and the ways to draw from it."""
