"""Replay buffers: one ring implementation and several sampling strategies."""
