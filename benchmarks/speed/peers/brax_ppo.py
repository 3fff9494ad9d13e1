"""brax's own PPO trainer, unchanged, with the function that it needs and that JAX has removed.

``brax.training`` 0.14.2 calls ``jax.device_put_replicated``, which JAX 0.10 has removed. ``supply_replication``
replaces it with an equivalent function based on ``jax.device_put``: stack copies, and shard the new axis over the
devices.

As a script, it trains with the settings of ``agent=ppo env=hopper`` and reports the end of the first step.
"""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# The environments, rollouts and minibatches of configs/experiment/ppo/hopper.yaml; brax's episodes have 1000 steps.
AS_SHIPPED = {
    "env": "hopper",
    "backend": "generalized",
    "num_envs": 64,
    "unroll_length": 32,
    "batch_size": 8,
    "num_minibatches": 8,
    "num_updates_per_batch": 4,
    "hidden_sizes": [256, 256],
    "learning_rate": 2.5e-4,
    "max_grad_norm": 0.5,
}


def supply_replication() -> None:
    """Provide ``jax.device_put_replicated`` again, for this process."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    def device_put_replicated(tree: Any, devices: Sequence[jax.Device]) -> Any:
        sharding = NamedSharding(Mesh(np.array(devices), ("devices",)), PartitionSpec("devices"))
        return jax.tree.map(lambda x: jax.device_put(jnp.stack([x] * len(devices)), sharding), tree)

    if not hasattr(jax, "device_put_replicated"):
        jax.device_put_replicated = device_put_replicated


def train(config: Mapping[str, Any], steps: int, num_epochs: int, after_epoch: Callable[[], None]) -> None:
    """Run brax's trainer without evaluations.

    Args:
        config: ``env``, ``backend``, ``hidden_sizes``, and arguments of brax's ``train``.
        steps: environment steps of an epoch.
        num_epochs: number of epochs.
        after_epoch: called after each epoch.
    """
    warnings.simplefilter("ignore")
    supply_replication()
    from brax import envs
    from brax.training.agents.ppo import networks
    from brax.training.agents.ppo import train as ppo

    options = {key: value for key, value in config.items() if key not in ("env", "backend", "hidden_sizes")}
    sizes = tuple(config["hidden_sizes"])
    make_networks = functools.partial(
        networks.make_ppo_networks, policy_hidden_layer_sizes=sizes, value_hidden_layer_sizes=sizes
    )
    ppo.train(
        envs.get_environment(config["env"], backend=config["backend"]),
        num_timesteps=steps * num_epochs,
        num_evals=num_epochs + 1,
        run_evals=False,
        episode_length=1000,
        normalize_observations=True,
        network_factory=make_networks,
        progress_fn=lambda *_: after_epoch(),
        **options,
    )


def main() -> None:
    started = time.perf_counter()
    os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}")
    import jax

    if cache := os.environ.get("XDG_CACHE_HOME"):
        jax.config.update("jax_compilation_cache_dir", os.path.join(cache, "brax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    steps = AS_SHIPPED["num_envs"] * AS_SHIPPED["unroll_length"]
    text = f"First step in {{:.1f}} s with {jax.device_count()} devices."
    train(AS_SHIPPED, steps, 1, lambda: print(text.format(time.perf_counter() - started), flush=True))


if __name__ == "__main__":
    main()
