"""The base of environments: equality, compiled methods, strong types."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import Box, EnvState
from evorl.envs.env import PhysicsEnv, compiled, strongly_typed
from evorl.envs.wrappers import ObsFlattenWrapper, VmapAutoResetWrapper
from evorl.types import PyTreeDict
from tests.support.probe_envs import ProbeEnv, make_probe


class Counting(ProbeEnv):
    """Counts the traces of its method."""

    traces = 0

    @compiled
    def doubled(self, x: jax.Array) -> jax.Array:
        """Return twice ``x``."""
        Counting.traces += 1
        return 2 * x


def test_equal_environments_share_a_trace() -> None:
    first, second = Counting("best_action"), Counting("best_action")
    assert first == second
    assert first != Counting("termination")
    assert float(first.doubled(jnp.ones(()))) == 2.0
    second.doubled(jnp.ones(()))
    jax.jit(lambda x: second.doubled(x))(jnp.ones(()))
    jax.vmap(second.doubled)(jnp.ones(3))
    assert Counting.traces == 1


def test_environments_are_legal_static_arguments() -> None:
    traces = []

    @jax.jit
    def dummy() -> None:
        return None

    dummy()

    def start(env, key):
        traces.append(env)
        return env.reset(key).obs

    compiled_start = jax.jit(start, static_argnums=0)
    for _ in range(2):
        compiled_start(make_probe("best_action", 2), jax.random.key(0))
    assert len(traces) == 1
    compiled_start(make_probe("best_action", 3), jax.random.key(0))
    assert len(traces) == 2


class BoundsByJax(ProbeEnv):
    """Builds its spaces with ``jax.numpy`` at each access, also within a trace."""

    @property
    def obs_space(self) -> Box:
        """Two numbers."""
        return Box(-jnp.ones(1), 2 * jnp.ones(1))

    def reset(self, key: jax.Array) -> EnvState:
        """Reset to a random element of its space."""
        return super().reset(key).replace(obs=self.obs_space.sample(key))


def test_spaces_are_known_inside_a_trace() -> None:
    env = VmapAutoResetWrapper(ObsFlattenWrapper(BoundsByJax("best_action")), 3)
    state = env.reset(jax.random.key(0))
    assert env.obs_space == Box(-1.0, 2.0, (1,))
    assert env.obs_space.contains(state.obs).all()
    assert BoundsByJax.obs_space.__doc__ == "Two numbers."


def test_a_hash_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    env, before = make_probe("best_action", 2), hash(make_probe("best_action", 2))
    assert hash(env) == before
    monkeypatch.setattr(ProbeEnv, "_identity", lambda self: 1 / 0)
    assert hash(env) == before
    with pytest.raises(ZeroDivisionError):
        hash(make_probe("best_action", 2))


def test_an_environment_is_not_equal_to_something_else() -> None:
    assert make_probe("best_action") != "best_action"
    assert ProbeEnv("best_action") != make_probe("best_action")
    assert ProbeEnv("best_action").unwrapped == ProbeEnv("best_action")
    assert ProbeEnv("best_action").max_episode_steps is None


def test_strongly_typed() -> None:
    tree = strongly_typed({"a": 1, "b": jnp.asarray(2.0)})
    assert not any(x.weak_type for x in jax.tree.leaves(tree))
    assert tree["a"].dtype == jnp.int32


class Weight(PhysicsEnv):
    """Environment that observes the mass of its model plus the action."""

    obs_space = Box(-jnp.inf, jnp.inf, (1,))
    action_space = Box(-1.0, 1.0, (1,))
    physics_model = PyTreeDict(mass=2.0)

    def reset_in(self, model: PyTreeDict, key: jax.Array) -> EnvState:
        return self.step_in(model, None, jax.random.uniform(key, (1,)))  # pyright: ignore[reportArgumentType]

    def step_in(self, model: PyTreeDict, env_state: EnvState, action: jax.Array) -> EnvState:
        false = jnp.array(False)
        info = PyTreeDict(termination=false, truncation=false, metrics=PyTreeDict())
        return EnvState(None, model.mass + action, jnp.zeros(()), false, info)


def test_starts_and_steps_are_in_its_own_model() -> None:
    env, key = Weight(), jax.random.key(0)
    state = env.reset(key)
    np.testing.assert_array_equal(state.obs, 2.0 + jax.random.uniform(key, (1,)))
    np.testing.assert_array_equal(env.step(state, jnp.ones(1)).obs, [3.0])


def test_each_row_of_a_batch_may_have_a_model_of_its_own() -> None:
    env, models = Weight(), PyTreeDict(mass=jnp.array([1.0, 5.0]))
    state = env.reset(jax.random.key(0))
    obs = jax.vmap(env.step_in, (0, None, None))(models, state, jnp.ones(1)).obs
    np.testing.assert_array_equal(obs, [[2.0], [6.0]])
