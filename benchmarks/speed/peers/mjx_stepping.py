"""MJX by itself: ``jax.vmap(mjx.step)`` in a scan, with random actions and nothing else.

No rewards, no observations, and no ends of episodes: a body that falls remains on the ground. If that changes the
cost of a step, compare on a task that never ends.

Settings: ``env`` (name of an MJX task, whose model and frame skip are used, ``parallel``), ``steps`` (environment steps
in one measurement).
"""

from __future__ import annotations

from typing import Any

from benchmarks.speed.child import read_settings, serve, timed
from evorl.execution.runtime import prepare_for
from evorl.runs.spec import RunSpec


def prepare() -> Any:
    settings = read_settings()
    prepare_for(
        RunSpec.from_config({"env": settings["env"], "devices": 1, "compilation_cache": settings.get("cache") or False})
    )
    import jax
    import jax.numpy as jnp

    from evorl.envs.mjx import make_mjx_adapter

    adapter = make_mjx_adapter(settings["env"]["name"])
    from mujoco import mjx  # after the adapter, which suppresses the output of this import

    model, num_envs = adapter.physics_model, settings["env"]["parallel"]
    num_steps = max(1, settings["steps"] // num_envs)
    low, high = jnp.asarray(adapter.action_space.low), jnp.asarray(adapter.action_space.high)

    @jax.jit
    def start(key: jax.Array) -> Any:
        def one(key: jax.Array) -> Any:
            state = adapter.reset(key).env_state
            return mjx.forward(model, mjx.make_data(model).replace(qpos=state.qpos, qvel=state.qvel))

        return jax.vmap(one)(jax.random.split(key, num_envs))

    def one_step(data: Any, key: jax.Array) -> tuple[Any, None]:
        data = data.replace(ctrl=jax.random.uniform(key, data.ctrl.shape, minval=low, maxval=high))
        substeps = (lambda data, _: (jax.vmap(mjx.step, (None, 0))(model, data), None), data)
        return jax.lax.scan(*substeps, length=adapter.task.frame_skip)[0], None

    run = jax.jit(lambda data, keys: jax.lax.scan(one_step, data, keys)[0], donate_argnums=0)
    data, keys = [start(jax.random.key(2))], jax.random.split(jax.random.key(1), num_steps)

    def step() -> None:
        data[0] = jax.block_until_ready(run(data[0], keys))

    step()
    return lambda: timed(num_steps * num_envs, step)


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "mujoco", "mujoco-mjx", "evorl")
