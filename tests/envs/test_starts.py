"""The choice of when starts of episodes are computed; that it does not show is in ``tests/conformance/env.py``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import Box, EnvState, create_env
from evorl.envs.starts import CHEAP_NUMBERS, CHEAP_OPERATIONS, start_policy
from evorl.envs.vector import VectorEnv
from evorl.envs.wrappers import EpisodeWrapper, VmapAutoResetWrapper
from evorl.ops.platform import compiled_for
from evorl.types import PyTreeDict
from tests.support.optional_packages import need
from tests.support.toy_envs import ToyEnv, TugOfWar, toy_state, with_starts


class Laborious(ToyEnv):
    """Its reset repeats an operation, and its step another one."""

    obs_space = Box(-np.inf, np.inf, (2,))
    action_space = Box(-1, 1, (2,))

    def __init__(self, of_reset: int, of_step: int, size: int = 2) -> None:
        self.of_reset, self.of_step, self.size = of_reset, of_step, size

    def _identity(self) -> tuple[int, int, int]:
        return self.of_reset, self.of_step, self.size

    def reset(self, key: jax.Array) -> EnvState:
        """Repeated sines of uniform numbers."""
        x = jax.random.uniform(key, (self.size,))
        x, _ = jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=self.of_reset)
        return toy_state(PyTreeDict(x=x), x[:2])

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        """Repeated cosines."""
        x, _ = jax.lax.scan(lambda x, _: (jnp.cos(x), None), env_state.env_state.x, length=self.of_step)
        return toy_state(PyTreeDict(x=x), x[:2] + action, x.sum())


def of_copies(env: ToyEnv) -> VectorEnv:
    return VmapAutoResetWrapper(EpisodeWrapper(env, 5), 4 * env.num_agents)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (Laborious(1, 1), "every_step"),
        (Laborious(2 * CHEAP_OPERATIONS, 1), "when_needed"),
        (Laborious(2 * CHEAP_OPERATIONS, 9 * CHEAP_OPERATIONS), "every_step"),  # small relative to the step
        (Laborious(10, 10, CHEAP_NUMBERS), "when_needed"),  # few operations on many numbers
        (Laborious(10, 1000, CHEAP_NUMBERS), "every_step"),
        (TugOfWar(), "every_step"),  # several agents
    ],
)
def test_starts_are_computed_at_every_step_where_that_is_cheap(env: ToyEnv, expected: str) -> None:
    assert start_policy(of_copies(env)) == "when_needed"  # on a CPU always
    with compiled_for("gpu"):
        assert start_policy(of_copies(env)) == expected
        assert start_policy(with_starts(of_copies(env), "when_needed")) == "when_needed"


@pytest.mark.parametrize(
    ("package", "name", "expected"),
    [
        ("gymnax", "gymnax/CartPole-v1", "every_step"),
        ("brax", "brax/hopper", "every_step"),
        ("mujoco.mjx", "mjx/hopper", "every_step"),
        ("craftax", "craftax/Craftax-Classic-Symbolic-v1", "when_needed"),  # worlds are generated
        ("mujoco_playground", "playground/CheetahRun", "when_needed"),  # settles for 200 steps
    ],
)
def test_environments_of_libraries(package: str, name: str, expected: str) -> None:
    need(package, package)
    with compiled_for("gpu"):
        assert start_policy(create_env(name, parallel=2)) == expected
