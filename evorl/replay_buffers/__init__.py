"""Replay buffers: one ring engine and the ways to draw from it."""

from evorl.replay_buffers.ring import ReplayState
from evorl.replay_buffers.uniform import UniformReplayBuffer

__all__ = ["ReplayState", "UniformReplayBuffer"]
