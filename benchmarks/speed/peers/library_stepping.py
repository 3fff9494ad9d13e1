"""Environments of a JAX library stepped without evorl: ``vmap`` and ``scan`` over its own functions.

Settings: ``library``, ``name``, ``parallel`` (environments), ``resets`` (the library's own wrapper resets ended
episodes; otherwise steps continue after the end), ``steps`` (of all environments in one measurement), ``cache``.
Actions are random, and legal where the library has masks. All outputs of a step are in the carry, so that they are
computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.speed.child import read_settings, serve, timed


class Stepping(NamedTuple):
    """A library's batched functions: ``reset(keys)``, ``sample(carry, key)`` and ``step(carry, actions, keys)``."""

    reset: Callable[..., Any]
    sample: Callable[..., Any]
    step: Callable[..., Any]


def prepare() -> Any:
    settings = read_settings()
    warnings.simplefilter("ignore")
    import jax

    if settings.get("cache"):
        jax.config.update("jax_compilation_cache_dir", settings["cache"])
    num_envs = settings["parallel"]
    stepping = MAKERS[settings["library"]](settings["name"], num_envs, settings["resets"])
    num_steps = max(1, settings["steps"] // num_envs)

    def one_step(carry: Any, key: Any) -> tuple[Any, None]:
        action_key, step_key = jax.random.split(key)
        actions = stepping.sample(carry, action_key)
        return stepping.step(carry, actions, jax.random.split(step_key, num_envs)), None

    @jax.jit
    def run(carry: Any, key: Any) -> Any:
        return jax.lax.scan(one_step, carry, jax.random.split(key, num_steps))[0]

    start = jax.jit(stepping.reset)(jax.random.split(jax.random.key(0), num_envs))
    # In some libraries, dtypes after a step differ from those after a reset.
    first = jax.jit(one_step)(start, jax.random.key(1))[0]
    carries, key = [first], jax.random.key(2)

    def step() -> None:
        carries[0] = jax.block_until_ready(run(carries[0], key))

    step()
    return lambda: timed(num_steps * num_envs, step)


def playground(name: str, num_envs: int, resets: bool) -> Stepping:
    """Step MuJoCo Playground on MJX in JAX, with its training wrappers, whose cached resets restart episodes."""
    import jax
    from mujoco_playground import registry, wrapper

    config = registry.get_default_config(name)
    config.impl = "jax"
    env = registry.load(name, config=config)
    shape = (num_envs, env.action_size)
    reset, step = jax.vmap(env.reset), jax.vmap(env.step)
    if resets:
        wrapped = wrapper.wrap_for_brax_training(env, episode_length=config.episode_length)
        # The wrappers of the library require the shape of legacy keys.
        reset, step = (lambda keys: wrapped.reset(jax.random.key_data(keys))), wrapped.step
    return Stepping(
        reset,
        lambda _, key: jax.random.uniform(key, shape, minval=-1.0),
        lambda state, actions, _: step(state, actions),
    )


def jumanji(name: str, num_envs: int, resets: bool) -> Stepping:
    """Step Jumanji, with legal actions by its masks."""
    import jax
    import jax.numpy as jnp
    import jumanji
    from jumanji import wrappers

    env = jumanji.make(name)
    batched = (wrappers.VmapAutoResetWrapper if resets else wrappers.VmapWrapper)(env)

    def sample(carry: Any, key: Any) -> Any:
        return jax.random.categorical(key, jnp.where(carry[1].observation.action_mask, 0.0, -jnp.inf))

    return Stepping(batched.reset, sample, lambda carry, actions, _: batched.step(carry[0], actions))


def craftax(name: str, num_envs: int, resets: bool) -> Stepping:
    """Step Craftax."""
    import jax
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name(name, auto_reset=resets)
    params = env.default_params

    def step(carry: Any, actions: Any, keys: Any) -> Any:
        obs, state, reward, done, _ = jax.vmap(env.step, (0, 0, 0, None))(keys, carry[1], actions, params)
        return obs, state, reward, done

    def reset(keys: Any) -> Any:
        obs, state = jax.vmap(env.reset, (0, None))(keys, params)
        return obs, state, jax.numpy.zeros(num_envs), jax.numpy.zeros(num_envs, bool)

    return Stepping(reset, lambda _, key: jax.random.randint(key, (num_envs,), 0, env.num_actions), step)


def xminigrid(name: str, num_envs: int, resets: bool) -> Stepping:
    """Step XLand-MiniGrid."""
    import jax
    import xminigrid as library
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = library.make(name)
    env = GymAutoResetWrapper(env) if resets else env
    return Stepping(
        lambda keys: jax.vmap(env.reset, (None, 0))(params, keys),
        lambda _, key: jax.random.randint(key, (num_envs,), 0, env.num_actions(params)),
        lambda state, actions, _: jax.vmap(env.step, (None, 0, 0))(params, state, actions),
    )


MAKERS = {"playground": playground, "jumanji": jumanji, "craftax": craftax, "xminigrid": xminigrid}


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "playground", "mujoco-mjx", "jumanji", "craftax", "xminigrid")
