"""The floor under a training: a batch of environments stepped with random actions on one device, unchunked.

Settings: ``env`` (arguments of ``create_env``), ``steps`` (environment steps of each seed in one measurement),
``num_seeds`` (a ``vmap`` over so many batches, none by default), ``cache``.
"""

from __future__ import annotations

from typing import Any

from benchmarks.child import read_settings, serve, timed
from evorl.cli import prepare_for


def prepare() -> Any:
    settings = read_settings()
    prepare_for({"env": settings["env"], "devices": 1, "compilation_cache": settings.get("cache") or False})
    import jax

    from evorl import RandomAgent
    from evorl.envs import create_env
    from evorl.sample_batch import SampleBatch

    env = create_env(**settings["env"])
    agent = RandomAgent()
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    num_steps = max(1, settings["steps"] // env.num_envs)
    num_seeds = settings.get("num_seeds")

    def one_step(env_state: Any, key: jax.Array) -> tuple[Any, None]:
        actions, _ = agent.compute_actions(agent_state, SampleBatch(obs=env_state.obs), key)
        return env.step(env_state, actions), None

    def run(env_state: Any, key: jax.Array) -> Any:
        return jax.lax.scan(one_step, env_state, jax.random.split(key, num_steps))[0]

    reset, key, reset_key = env.reset, jax.random.key(1), jax.random.key(2)
    if num_seeds is not None:
        run, reset = jax.vmap(run), jax.vmap(reset)
        key, reset_key = jax.random.split(key, num_seeds), jax.random.split(reset_key, num_seeds)
    step_many = jax.jit(run, donate_argnums=0)
    state = [jax.block_until_ready(step_many(reset(reset_key), key))]

    def step() -> None:
        state[0] = jax.block_until_ready(step_many(state[0], key))

    return lambda: timed(num_steps * env.num_envs * (num_seeds or 1), step)


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "brax", "mujoco-mjx", "gymnax", "evorl")
