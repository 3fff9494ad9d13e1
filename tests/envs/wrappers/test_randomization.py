"""Physics parameters sampled per episode: ranges, durations, and parameters that cannot be randomized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, Box, EnvState, create_env
from evorl.envs.brax import make_brax_adapter
from evorl.envs.env import PhysicsEnv
from evorl.envs.mjx import make_mjx_adapter
from evorl.envs.stack import wrap_env
from evorl.envs.wrappers.randomization import (
    FieldRange,
    RandomizedPhysicsWrapper,
    model_fields,
    randomized,
    range_of_field,
)
from evorl.envs.wrappers.wrapper import Wrapper
from evorl.ops.trees import with_leaves
from evorl.types import PyTreeDict
from tests.conformance.env import VectorEnvContract
from tests.support.errors import raises_naming
from tests.support.probe_envs import ProbeEnv
from tests.support.toy_envs import toy_state

HALF_TO_TWICE = {"body.mass": {"scale": [0.5, 2.0]}, "gravity": {"shift": [-1, 1], "entries": [1]}}


class Falling(PhysicsEnv):
    """Two bodies held against gravity by a force, observed by height; the episode ends below the ground."""

    obs_space = Box(-jnp.inf, jnp.inf, (2,))
    action_space = Box(-1.0, 1.0, (1,))

    @property
    def physics_model(self) -> PyTreeDict:
        return PyTreeDict(
            gravity=jnp.array([0.0, -0.1]),
            body={"mass": jnp.array([1.0, 2.0])},
            color=jnp.ones(3),
            count=jnp.arange(3),
        )

    def reset_in(self, model: PyTreeDict, key: jax.Array) -> EnvState:
        del model
        return self._state(jax.random.uniform(key, (2,), minval=0.5, maxval=1.0), 0.0)

    def step_in(self, model: PyTreeDict, env_state: EnvState, action: jax.Array) -> EnvState:
        height = env_state.env_state + model.gravity[1] + 0.1 * action / model.body.mass
        return self._state(height, 1.0)

    def _state(self, height: jax.Array, reward: float) -> EnvState:
        return toy_state(height, height, reward, jnp.any(height < 0))

    def _identity(self) -> str:
        return "falling"


class TestFalling(VectorEnvContract):
    """The environment contract with randomized physics."""

    num_steps = 40

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode):
        return wrap_env(
            Falling(),
            parallel=parallel,
            autoreset_mode=autoreset_mode,
            max_episode_steps=9,
            randomization=HALF_TO_TWICE,
        )

    def test_drawn_numbers_stay_for_an_episode_and_are_new_in_the_next(self, env, start) -> None:
        def step(state: EnvState, _: Any) -> tuple[EnvState, Any]:
            state = env.step(state, jnp.zeros((4, 1)))
            return state, (state.done, state._internal.inner.physics)

        _, (done, physics) = jax.jit(lambda s: jax.lax.scan(step, s, length=60))(start)
        changed = np.diff(physics["body.mass"][:, :, 0], axis=0) != 0
        np.testing.assert_array_equal(changed, done[1:])
        assert changed.sum() > 10
        assert (changed.any(axis=1) & ~changed.all(axis=1)).any(), "rows end by themselves"

    def test_partial_reset_draws_for_its_rows_only(self, env, start) -> None:
        mask = jnp.array([True, False, False, True])
        after = env.partial_reset(start, mask, jax.random.key(8))._internal.inner.physics
        for name, values in start._internal.inner.physics.items():
            np.testing.assert_array_equal((after[name] != values).any(axis=-1), mask)


def _drawn(ranges: list[FieldRange]) -> dict[str, np.ndarray]:
    env = RandomizedPhysicsWrapper(Falling(), ranges)
    states = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 500))
    return {name: np.asarray(values) for name, values in states._internal.physics.items()}


def test_one_draw_is_that_of_all_entries() -> None:
    mass = _drawn([FieldRange("body.mass", scale=(0.5, 2.0))])["body.mass"]
    np.testing.assert_allclose(mass[:, 1], 2 * mass[:, 0], rtol=1e-6)
    assert 0.5 <= mass[:, 0].min() < 0.55
    assert 1.9 < mass[:, 0].max() <= 2.0


def test_each_entry_is_drawn_and_others_stay() -> None:
    drawn = _drawn(
        [FieldRange("body.mass", shift=(0.0, 1.0), each=True), FieldRange("gravity", scale=(1.0, 3.0), entries=(1,))]
    )
    mass, gravity = drawn["body.mass"] - np.array([1.0, 2.0]), drawn["gravity"]
    assert mass.min() >= 0
    assert mass.max() <= 1
    assert abs(np.corrcoef(mass.T)[0, 1]) < 0.2
    assert abs(np.corrcoef(mass[:, 0], gravity[:, 1])[0, 1]) < 0.2
    assert not gravity[:, 0].any()
    assert np.ptp(gravity[:, 1]) > 0.15


def test_a_step_is_that_of_the_drawn_physics() -> None:
    env = randomized(Falling(), HALF_TO_TWICE)
    state = env.reset(jax.random.key(1))
    stepped = env.step(state, jnp.ones(1))
    drawn = state._internal.physics
    expected = state.obs + drawn["gravity"][1] + 0.1 / drawn["body.mass"]
    np.testing.assert_allclose(stepped.obs, expected, rtol=1e-6)
    assert drawn["gravity"][1] != -0.1


@pytest.mark.parametrize(
    ("make", "options", "field"),
    [
        (make_brax_adapter, ("generalized",), "link.inertia.mass"),
        (make_mjx_adapter, (), "body_mass"),
    ],
    ids=["brax", "mjx"],
)
def test_simulators_step_in_what_is_drawn(make: Callable[..., PhysicsEnv], options: tuple, field: str) -> None:
    """A step equals that of a simulator whose model has the sampled parameters."""
    adapter = make("inverted_pendulum", *options)
    env = randomized(adapter, {field: {"scale": [2.0, 3.0], "each": True}})

    state, action = env.reset(jax.random.key(0)), jnp.full(1, 0.7)
    drawn, physics = env.step(state, action).obs, state._internal.physics
    own = PyTreeDict({field: np.asarray(dict(model_fields(adapter.physics_model))[field])})
    # With the parameters as arguments, instead of the whole model, both share one program.
    step_in = jax.jit(lambda physics: adapter.step_in(with_leaves(adapter.physics_model, physics), state, action).obs)
    np.testing.assert_allclose(drawn, step_in(physics), rtol=1e-5, atol=1e-6)
    assert np.abs(drawn - step_in(own)).max() > 1e-3


def test_fields_are_named_dotted_or_nested_and_equal_settings_are_equal() -> None:
    assert [name for name, _ in model_fields(Falling().physics_model)] == ["body.mass", "color", "gravity"]
    nested = randomized(Falling(), {"body": {"mass": {"scale": [0.5, 2.0]}}})
    assert nested == randomized(Falling(), {"body.mass": {"scale": (0.5, 2)}})
    assert nested != randomized(Falling(), {"body.mass": {"scale": [0.5, 2.1]}})
    assert randomized(Falling(), {}) == Falling()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"body.mas": {"scale": [1, 2]}}, ("field of the physics", "'body.mas'", "'body.mass'")),
        ({"mass": {"scale": [1, 2]}}, ("'mass'", "'body.mass'")),
        ({"gravity": {"scle": [1, 2]}}, ("env.randomization.gravity", "'scle'", "'scale'")),
        ({"gravity": {"each": True}}, ("env.randomization.gravity", "scale or shift")),
        ({"gravity": 3}, ("env.randomization.gravity", "mapping")),
        ({"gravity": {"shift": [1, -1]}}, ("gravity.shift", "two numbers", "got [1, -1]")),
        ({"gravity": {"shift": [0, float("inf")]}}, ("gravity.shift", "two numbers", "inf]")),
        (
            {"gravity": {"shift": [0, 1], "entries": [2]}},
            ("gravity.entries", "distinct integers from 0 to 1", "got [2]"),
        ),
        ({"gravity": {"shift": [0, 1], "each": 2}}, ("gravity.each", "true or false", "got 2")),
        ({"body.mass": {"scale": [-1, 1]}}, ("body.mass", "-2", "model has 2", "positive")),
        ({"body.mass": {"shift": [-1.5, 0]}}, ("body.mass", "-0.5", "model has 1")),
        ({"colour": {"scale": [0, 1]}}, ("env.randomization", "'colour'", "'color'", "physics")),
        ({"gravity": {"shift": [0, 1]}, "in_evaluation": 3}, ("in_evaluation", "true or false", "got 3")),
        ([], ("env.randomization", "mapping")),
    ],
)
def test_what_cannot_be_drawn_is_told(config: Any, message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        randomized(Falling(), config)


def test_the_field_of_another_backend_is_refused() -> None:
    with raises_naming(ValueError, "link.inertia.mass", "body_mass"):
        randomized(make_brax_adapter("inverted_pendulum", "generalized"), {"body_mass": {"scale": [1, 2]}})


def test_environments_without_a_model_refuse() -> None:
    for env in (ProbeEnv("best_action"), make_brax_adapter("fast")):
        with raises_naming(ValueError, "env.randomization", "physics model"):
            randomized(env, HALF_TO_TWICE)
    with raises_naming(ValueError, "env.randomization", "physics model", "GymnaxAdapter"):
        create_env("gymnax/CartPole-v1", randomization=HALF_TO_TWICE)
    with raises_naming(ValueError, "env.randomization", "JAX environment"):
        create_env("host/hopper", randomization=HALF_TO_TWICE)


def make_falling() -> Falling:
    return Falling()


def test_an_environment_of_ones_own_may_have_a_model() -> None:
    env = create_env(factory=f"{__name__}:make_falling", randomization=HALF_TO_TWICE, parallel=3)
    assert env.reset(jax.random.key(0))._internal.inner.physics["body.mass"].shape == (3, 2)


class Tilted(Wrapper):
    """A task on the physics of another one, with its own reward."""

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        state = self.env.step(env_state, action)
        return state.replace(reward=10.0 * state.reward)


def test_a_wrapper_with_its_own_step_is_not_skipped() -> None:
    with raises_naming(ValueError, "env.randomization", "Tilted", "PhysicsEnv"):
        randomized(Tilted(Falling()), HALF_TO_TWICE)


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("link.inertia.transform.pos", np.zeros((2, 3)), 0.02),
        ("link.inertia.i", np.eye(3)[None], 1e-4),  # products of inertia may be negative
        ("ang_damping", np.array(0.1), 0.2),  # brax computes exp(ang_damping * dt)
    ],
)
def test_names_that_contain_a_positive_quantity_may_be_negative(field: str, value: np.ndarray, limit: float) -> None:
    field_range = range_of_field(field, {"shift": [-limit, 0.0], "each": True}, value)
    drawn = jax.vmap(lambda key: field_range.draw(jnp.asarray(value), key))(jax.random.split(jax.random.key(0), 20))
    assert (drawn < 0).any()


def test_a_position_of_brax_may_be_negative() -> None:
    setting = {"link.inertia.transform.pos": {"shift": [-0.02, 0.02], "each": True}}
    env = randomized(make_brax_adapter("inverted_pendulum", "generalized"), setting)
    assert (env.reset(jax.random.key(0))._internal.physics["link.inertia.transform.pos"] < 0).any()


@pytest.mark.parametrize(
    ("field", "setting", "parts"),
    [
        ("link.inertia.mass", {"scale": [-1, 1]}, ("positive",)),
        ("link.inertia.i", {"scale": [-1, 1]}, ("positive",)),
        ("link.inertia.i", {"shift": [-1e3, 1]}, ("positive",)),
        ("dof.damping", {"shift": [-1e3, 1]}, ("non-negative",)),
        ("link.constraint_ang_damping", {"shift": [-1e6, 1]}, ("non-negative",)),
    ],
)
def test_positive_quantities_of_brax_stay_positive(field: str, setting: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, f"env.randomization.{field}", *parts):
        randomized(make_brax_adapter("inverted_pendulum", "generalized"), {field: setting})
