"""Replay buffers: one ring engine and the ways to draw from it."""

from evorl.replay_buffers.episode import EpisodeReplayBuffer, EpisodeReplayState, EpisodeSpan, episode_span
from evorl.replay_buffers.n_step import take_n_step
from evorl.replay_buffers.prioritized import PrioritizedReplayBuffer, PrioritizedReplayState
from evorl.replay_buffers.ring import ReplayState
from evorl.replay_buffers.sequence import PrioritizedSequenceReplayBuffer, SequenceReplayBuffer, take_sequences
from evorl.replay_buffers.uniform import UniformReplayBuffer

__all__ = [
    "EpisodeReplayBuffer",
    "EpisodeReplayState",
    "EpisodeSpan",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayState",
    "PrioritizedSequenceReplayBuffer",
    "ReplayState",
    "SequenceReplayBuffer",
    "UniformReplayBuffer",
    "episode_span",
    "take_n_step",
    "take_sequences",
]
