"""Adding to a replay buffer: one transition at a time, in one compiled program that the buffer is donated to.

Settings: ``capacity`` (rows), ``adds`` (in one measurement), ``obs_size``, ``action_size``, ``cache``.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.speed.child import Reading, read_settings, serve
from evorl.execution.runtime import prepare_runtime


def prepare() -> Any:
    settings = read_settings()
    prepare_runtime(1, settings.get("cache") or False)
    import jax
    import jax.numpy as jnp

    from evorl.replay_buffers.uniform import UniformReplayBuffer
    from evorl.sample_batch import SampleBatch

    obs, action = jnp.zeros(settings["obs_size"]), jnp.zeros(settings["action_size"])
    transition = SampleBatch(obs=obs, actions=action, rewards=jnp.zeros(()), next_obs=obs)
    buffer = UniformReplayBuffer(capacity=settings["capacity"])
    adds = settings["adds"]

    def add(state: Any, number: jax.Array) -> tuple[Any, None]:
        rows = jax.tree.map(lambda x: jnp.broadcast_to(x + number, (1, 1, *x.shape)), transition)
        return buffer.add(state, rows), None

    add_many = jax.jit(lambda state: jax.lax.scan(add, state, jnp.arange(adds, dtype=jnp.float32))[0], donate_argnums=0)
    state = [buffer.init(transition)]
    # Every row is written once beforehand, so that its memory is allocated, as after the first round of a training run.
    filled = jax.tree.map(lambda x: x + 1, state[0].data)
    state[0] = jax.block_until_ready(add_many(state[0].replace(data=filled)))

    def measure() -> Reading:
        start, cpu_start = time.perf_counter(), time.process_time()
        state[0] = jax.block_until_ready(add_many(state[0]))
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        return {"add_seconds": seconds / adds, "add_cpu_seconds": cpu_seconds / adds}

    return measure


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "evorl")
