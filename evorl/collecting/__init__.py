"""Data collection on the host for agents of any framework: collectors, replay memory and training loop."""

from evorl.collecting.batch_agent import BatchAgent
from evorl.collecting.batcher import Batcher
from evorl.collecting.collector import Collector
from evorl.collecting.host_agent import HostAgent
from evorl.collecting.host_evaluation import play_on_host
from evorl.collecting.jax_agent import JaxHostAgent
from evorl.collecting.replay_memory import ReplayMemory
from evorl.collecting.runner import Runner
from evorl.collecting.transitions import Collected, as_sample_batch
from evorl.collecting.vector_collector import VectorCollector

__all__ = [
    "BatchAgent",
    "Batcher",
    "Collected",
    "Collector",
    "HostAgent",
    "JaxHostAgent",
    "ReplayMemory",
    "Runner",
    "VectorCollector",
    "as_sample_batch",
    "play_on_host",
]
