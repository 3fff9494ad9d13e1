"""The lower bound of a training run: a batch of environments stepped with random actions, unchunked.

Settings: ``env`` (arguments of ``create_env``), ``steps`` (environment steps of each seed in one measurement),
``num_seeds`` (``vmap`` over this many batches, none by default), ``devices`` (virtual devices of the processor that
share the environments; one by default), ``cache``.
"""

from __future__ import annotations

from typing import Any

from benchmarks.speed.child import read_settings, serve, timed
from evorl.execution.runtime import prepare_for
from evorl.runs.spec import RunSpec


def prepare() -> Any:
    settings = read_settings()
    num_devices = settings.get("devices", 1)
    prepare_for(
        RunSpec.from_config(
            {"env": settings["env"], "devices": num_devices, "compilation_cache": settings.get("cache") or False}
        )
    )
    import jax
    from jax.sharding import PartitionSpec

    from evorl import RandomAgent
    from evorl.envs import create_env
    from evorl.sample_batch import SampleBatch

    env = create_env(**{**settings["env"], "parallel": settings["env"]["parallel"] // num_devices})
    agent = RandomAgent()
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    num_steps = max(1, settings["steps"] // (env.num_envs * num_devices))
    num_seeds = settings.get("num_seeds")
    batches = num_seeds or (num_devices if num_devices > 1 else None)

    def one_step(env_state: Any, key: jax.Array) -> tuple[Any, None]:
        actions, _ = agent.compute_actions(agent_state, SampleBatch(obs=env_state.obs), key)
        return env.step(env_state, actions), None

    def run(env_state: Any, key: jax.Array) -> Any:
        return jax.lax.scan(one_step, env_state, jax.random.split(key, num_steps))[0]

    reset, key, reset_key = env.reset, jax.random.key(1), jax.random.key(2)
    if batches is not None:
        key, reset_key = jax.random.split(key, batches), jax.random.split(reset_key, batches)
        run, reset = jax.vmap(run), jax.vmap(reset)
    if num_devices > 1:
        mesh = jax.make_mesh((num_devices,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = PartitionSpec("devices")
        run = jax.shard_map(run, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False)
    step_many = jax.jit(run, donate_argnums=0)
    state = [reset(reset_key)]

    def step() -> None:
        state[0] = jax.block_until_ready(step_many(state[0], key))

    for _ in range(min(num_devices, 2)):  # the first call shards the state, the second compiles for it
        step()

    return lambda: timed(num_steps * env.num_envs * (batches or 1), step)


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "brax", "mujoco-mjx", "gymnax", "evorl")
