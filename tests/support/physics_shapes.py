"""Simulated bodies without physics, for code that is only traced."""

from __future__ import annotations

import copy
import functools
import sys
from types import ModuleType
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import pytest
from gymnasium.envs.registration import EnvSpec

from evorl.envs import brax, playground, starts
from evorl.envs.brax import BraxAdapter
from evorl.envs.catalog import DM_CONTROL
from evorl.envs.env import Env, EnvState, EnvWrapper
from evorl.envs.goals import reacher
from evorl.envs.vector import VectorEnv
from evorl.types import Action, Key


class StillBodies:
    """Inner environment with constant states of the shapes and types of ``adapter``.

    Its physics are traced once, one reset and one step. The tests of each adapter check that its types are stable.
    """

    def __init__(self, adapter: BraxAdapter) -> None:
        self.adapter = adapter
        self.action_size = adapter.action_space.shape[0]
        self.backend = getattr(adapter.brax_env, "backend", None)
        self._start = jax.eval_shape(adapter.reset, jax.random.key(0))
        stepped = jax.eval_shape(adapter.step, self._start, adapter.action_space.zeros())
        assert jax.tree.structure(stepped) == jax.tree.structure(self._start)

    def reset(self, rng: Key) -> Any:
        """Return a state in the format of brax and Playground."""
        del rng
        return jax.tree.map(_zeros, self._start.env_state)

    def step(self, state: EnvState, action: Action) -> Any:
        """Return the unchanged state."""
        del action
        return state


def _zeros(like: jax.ShapeDtypeStruct) -> jax.Array:
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), like.shape)
    return jnp.zeros(like.shape, like.dtype)


@functools.cache
def _without_physics(adapter: BraxAdapter) -> BraxAdapter:
    return type(adapter)(StillBodies(adapter), ("still", adapter))


def _with_physics(env: Env) -> Env:
    """Return an environment with the physics that ``StillBodies`` replaced."""
    bodies = getattr(env, "brax_env", None)
    if not isinstance(env, EnvWrapper):
        return bodies.adapter if isinstance(bodies, StillBodies) else env
    other = copy.copy(env)
    vars(other).pop("_hash", None)
    other.env = _with_physics(env.env)
    if isinstance(other, VectorEnv):  # costs are measured for one copy: once for all numbers of copies
        other.num_envs = other.num_agents
    return other


def let_bodies_be_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brax and Playground environments be created without physics from now on, and Pendulum replace dm_control.

    Starts of their episodes are computed when they would be with physics. Python 3.13 has no dm_control to install.
    """
    make_brax, make_playground = brax.make_brax_adapter, playground._make_adapter
    resets_are_cheap = starts._resets_are_cheap

    def make_still_brax(*arguments: Any) -> BraxAdapter:
        return _without_physics(make_brax(*arguments))

    def make_still_playground(*arguments: Any) -> tuple[BraxAdapter, dict[str, int]]:
        adapter, clock = make_playground(*arguments)
        return _without_physics(adapter), clock

    for module in (brax, reacher):
        monkeypatch.setattr(module, "make_brax_adapter", make_still_brax)
    monkeypatch.setattr(playground, "_make_adapter", make_still_playground)
    monkeypatch.setattr(starts, "_resets_are_cheap", lambda env: resets_are_cheap(_with_physics(env)))
    monkeypatch.setitem(sys.modules, "shimmy", ModuleType("shimmy"))  # the package that registers the tasks
    for name in (f"dm_control/{task}-v0" for task in DM_CONTROL):
        spec = EnvSpec(name, entry_point="gymnasium.envs.classic_control:PendulumEnv")
        monkeypatch.setitem(gymnasium.registry, name, spec)
