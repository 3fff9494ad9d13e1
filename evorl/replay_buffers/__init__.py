"""Replay buffers: storage of transitions in a ring or of episodes in slots, with several sampling strategies."""

from typing import TYPE_CHECKING

from evorl.exports import lazy_exports

if TYPE_CHECKING:
    from evorl.replay_buffers.episode import EpisodeReplayBuffer as EpisodeReplayBuffer
    from evorl.replay_buffers.latest import CombinedReplayBuffer as CombinedReplayBuffer
    from evorl.replay_buffers.prioritized import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from evorl.replay_buffers.recency import RecencyReplayBuffer as RecencyReplayBuffer
    from evorl.replay_buffers.ring import ReplayState as ReplayState
    from evorl.replay_buffers.sequence import PrioritizedSequenceReplayBuffer as PrioritizedSequenceReplayBuffer
    from evorl.replay_buffers.sequence import SequenceReplayBuffer as SequenceReplayBuffer
    from evorl.replay_buffers.slots import SlotReplayBuffer as SlotReplayBuffer
    from evorl.replay_buffers.uniform import UniformReplayBuffer as UniformReplayBuffer
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        episode="EpisodeReplayBuffer",
        latest="CombinedReplayBuffer",
        prioritized="PrioritizedReplayBuffer",
        recency="RecencyReplayBuffer",
        ring="ReplayState",
        sequence="PrioritizedSequenceReplayBuffer SequenceReplayBuffer",
        slots="SlotReplayBuffer",
        uniform="UniformReplayBuffer",
    )
