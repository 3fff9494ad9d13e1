"""Steps of Gymnasium's MuJoCo environments, each with the state it began in, and what MJX makes of the same steps."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import jax
import numpy as np

from evorl.envs.env import EnvState
from evorl.envs.mjx import MjxAdapter, MjxState
from evorl.types import PyTreeDict

NUM_STEPS = 200
STATE = ("qpos", "qvel", "qacc_warmstart")


@functools.cache
def recorded_steps(gymnasium_id: str, derived: tuple[str, ...]) -> dict[str, Any]:
    """``NUM_STEPS`` of random actions over as many episodes as it takes, each entry ``[T, ...]`` in float64.

    Args:
        gymnasium_id: of the environment.
        derived: fields of ``MjData`` that are recorded of the state before each step.
    """
    env = gymnasium.make(gymnasium_id)
    data: Any = env.unwrapped.data  # pyright: ignore[reportAttributeAccessIssue]
    rng, steps, space = np.random.default_rng(5), [], env.action_space
    env.reset(seed=0)
    for number in range(NUM_STEPS):
        before = {name: getattr(data, name).copy() for name in (*STATE, *derived)}
        action = rng.uniform(space.low, space.high)  # pyright: ignore[reportAttributeAccessIssue]
        obs, reward, terminated, truncated, info = env.step(action)
        steps.append({"before": before, "action": action, "obs": obs, "reward": reward, "done": terminated, **info})
        if terminated or truncated:
            env.reset(seed=number + 1)
    env.close()
    return jax.tree.map(lambda *x: np.array(x, np.float64), *steps)


def first_observation(gymnasium_id: str, state: MjxState) -> np.ndarray:
    """What Gymnasium's environment observes at the start of an episode in this state."""
    env: Any = gymnasium.make(gymnasium_id).unwrapped
    env.reset_model = lambda: env.set_state(*(np.float64(x) for x in (state.qpos, state.qvel)))
    env._get_reset_info = dict
    env.reset()
    obs = env._get_obs()
    env.close()
    return obs


def steps_of_mjx(adapter: MjxAdapter, steps: dict[str, Any]) -> tuple[EnvState, EnvState]:
    """The same steps by MJX, each from the state in which Gymnasium's began, ``[T, ...]``; and a start."""
    before, action = jax.tree.map(np.float32, (steps["before"], steps["action"]))
    derived = PyTreeDict({name: value for name, value in before.items() if name not in STATE})
    state = MjxState(**{name: before[name] for name in STATE}, derived=derived)
    nothing = np.zeros(NUM_STEPS, np.float32)
    batch = EnvState(state, nothing, nothing, nothing > 0)

    # The pass that moves what stays the same out of loops takes a fifth of the time to compile, and gains nothing here.
    @functools.partial(jax.jit, compiler_options={"xla_disable_hlo_passes": "while-loop-invariant-code-motion"})
    def both(*step: Any) -> tuple[EnvState, EnvState]:
        return jax.vmap(adapter.step)(*step), adapter.reset(jax.random.key(0))

    return both(batch, action)
