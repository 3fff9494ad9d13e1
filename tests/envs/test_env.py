"""The base of environments: equality, compiled methods, strong types."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from evorl.envs import Box, EnvState
from evorl.envs.env import compiled, strongly_typed
from evorl.envs.wrappers import ObsFlattenWrapper, VmapAutoResetWrapper
from tests.support.probe_envs import ProbeEnv, make_probe


class Counting(ProbeEnv):
    """Counts how often its method is traced."""

    traces = 0

    @compiled
    def doubled(self, x: jax.Array) -> jax.Array:
        """Twice ``x``."""
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
    """Builds its spaces with ``jax.numpy`` whenever it is asked, also in a trace."""

    @property
    def obs_space(self) -> Box:
        """Two numbers."""
        return Box(-jnp.ones(1), 2 * jnp.ones(1))

    def reset(self, key: jax.Array) -> EnvState:
        """Somewhere in its space."""
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
