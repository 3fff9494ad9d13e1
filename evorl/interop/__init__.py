"""Training of any framework's agents in environments on the host: collectors, replay memory and training loop."""

from evorl.interop.batch_agent import BatchAgent
from evorl.interop.batcher import Batcher
from evorl.interop.collector import Collector
from evorl.interop.host_agent import HostAgent
from evorl.interop.host_evaluation import play_on_host
from evorl.interop.jax_agent import JaxHostAgent
from evorl.interop.replay_memory import ReplayMemory
from evorl.interop.runner import Runner
from evorl.interop.transitions import Collected, as_sample_batch
from evorl.interop.vector_collector import VectorCollector

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
