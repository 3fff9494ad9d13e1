"""Contract of all agents. The test of an agent defines how to build it and inherits the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import Agent, AgentState
from evorl.envs import create_env
from evorl.envs.wrappers import VectorEnv
from evorl.ops.normalization import update_statistics
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.small_workflows import arrays, assert_close, assert_identical, static_fractions

NUM_ROWS = 5
KEY = jax.random.key(7)


class AgentContract:
    """Inherit as ``Test...`` and set ``workflow`` and ``settings``; override other attributes where defaults do not
    fit.
    """

    workflow: ClassVar[type[Workflow]]
    settings: ClassVar[Mapping[str, Any]]  # the ``agent`` node of a config
    env_name: ClassVar[str] = "Pendulum-v1"
    explores: ClassVar[bool] = True  # training actions are random
    has_parameters: ClassVar[bool] = True
    normalizes: ClassVar[bool] = True

    @classmethod
    def make(cls, env: VectorEnv, **changes: Any) -> Agent:
        """Build the agent for the spaces of an environment, as a workflow does."""
        return cls.workflow.make_agent({**cls.settings, **changes}, env)

    @pytest.fixture(scope="class")
    @classmethod
    def env(cls) -> VectorEnv:
        """Create the environment whose spaces the agent uses."""
        return create_env(cls.env_name, parallel=2)

    @pytest.fixture(scope="class")
    @classmethod
    def agent(cls, env: VectorEnv) -> Agent:
        """Build the agent with the default settings."""
        return cls.make(env)

    @pytest.fixture(scope="class")
    @classmethod
    def acted(cls, env: VectorEnv, agent: Agent) -> dict[str, Any]:
        """Return the results of ``act_in``."""
        return cls.act_in(env, agent)

    @classmethod
    def act_in(cls, env: VectorEnv, agent: Agent) -> dict[str, Any]:
        """Compute all checked outputs in one program."""

        def act(key: jax.Array) -> dict[str, Any]:
            state = agent.init(env.obs_space, env.action_space, key)
            obs = jax.random.normal(jax.random.key(1), (NUM_ROWS, *env.obs_space.zeros().shape))
            rows = jax.random.split(jax.random.key(2), NUM_ROWS)
            batch = cls.seen(state, obs)
            backwards = cls.seen(state, obs[::-1])
            other = jax.random.key(8)
            return {
                "state": state,
                "explored": agent.compute_actions(state, batch, KEY),
                "explored_otherwise": agent.compute_actions(state, batch, other)[0],
                "explored_by_rows": agent.compute_actions(state, batch, rows)[0],
                "explored_backwards": agent.compute_actions(state, backwards, rows[::-1])[0],
                "evaluated": agent.evaluate_actions(state, batch, KEY)[0],
                "evaluated_otherwise": agent.evaluate_actions(state, batch, other)[0],
                "evaluated_by_rows": agent.evaluate_actions(state, batch, rows)[0],
            }

        seeds = jnp.stack([KEY, jax.random.key(8)])
        acted, mapped = jax.jit(lambda: (act(KEY), jax.vmap(act)(seeds)))()
        return acted | {"mapped": mapped}

    @staticmethod
    def seen(state: AgentState, obs: jax.Array) -> SampleBatch:
        """Return observations with the recurrent state of an episode's start."""
        if state.recurrent_state is None:
            return SampleBatch(obs=obs)
        start = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(obs), *x.shape)), state.recurrent_state)
        return SampleBatch(obs=obs, extras=PyTreeDict(recurrent_state=start))

    def test_parameters_are_finite_and_follow_from_the_key(self, acted: dict) -> None:
        params, mapped = arrays(acted["state"].params), arrays(acted["mapped"]["state"].params)
        assert bool(params) == self.has_parameters
        assert all(np.isfinite(x).all() and x.dtype == np.float32 for x in params.values())
        kernels = [path for path in params if "kernel" in path]
        assert bool(kernels) == self.has_parameters
        assert all((mapped[path][0] != mapped[path][1]).any() for path in kernels)

    def test_actions_are_of_the_space(self, env: VectorEnv, acted: dict) -> None:
        spec = env.action_space.zeros()
        for name in ("explored", "explored_by_rows", "evaluated", "evaluated_by_rows"):
            actions = acted[name][0] if name == "explored" else acted[name]
            assert (actions.shape, actions.dtype) == ((NUM_ROWS, *spec.shape), spec.dtype)
            assert env.action_space.contains(actions).all()

    def test_what_is_remembered_of_actions_has_their_rows(self, acted: dict) -> None:
        _, extras = acted["explored"]
        assert all(leaf.shape[0] == NUM_ROWS for leaf in jax.tree.leaves(extras))

    def test_exploring_actions_follow_from_the_key(self, acted: dict) -> None:
        same = (acted["explored"][0] == acted["explored_otherwise"]).all()
        assert bool(same) != self.explores

    def test_rows_do_not_depend_on_one_another(self, acted: dict) -> None:
        """With a key per row, an action does not depend on the row's position."""
        np.testing.assert_allclose(acted["explored_backwards"][::-1], acted["explored_by_rows"], rtol=1e-5, atol=1e-6)

    def test_evaluation_is_deterministic(self, acted: dict) -> None:
        if not self.has_parameters:  # the baseline always acts at random
            return
        for name in ("evaluated_otherwise", "evaluated_by_rows"):
            np.testing.assert_allclose(acted[name], acted["evaluated"], rtol=1e-6, atol=1e-6)

    def test_it_composes_with_vmap(self, acted: dict) -> None:
        first = jax.tree.map(lambda x: np.asarray(x)[0], acted["mapped"])
        assert_close(first, {name: value for name, value in acted.items() if name != "mapped"}, 1e-4)

    def test_numbers_are_leaves(self, agent: Agent) -> None:
        assert not static_fractions(agent)
        assert all(jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in jax.tree.leaves(agent))

    def test_observations_are_normalized_wherever_it_acts(self, env: VectorEnv, agent: Agent, acted: dict) -> None:
        """An agent with observation statistics acts as on manually normalized observations."""
        if not self.normalizes:
            return
        agent = self.make(env, normalize_obs=True)
        obs = jax.random.normal(jax.random.key(1), (NUM_ROWS, *env.obs_space.zeros().shape))

        def act(key: jax.Array) -> tuple[Any, Any]:
            state = agent.init(env.obs_space, env.action_space, key)
            rows = 3.0 + 2.0 * jax.random.normal(jax.random.key(3), (64, *obs.shape[1:]))
            statistics = update_statistics(state.obs_preprocessor_state, rows)
            mean, std = rows.mean(axis=0), rows.std(axis=0)
            trained = state.replace(obs_preprocessor_state=statistics)
            plain = state.replace(obs_preprocessor_state=None)
            by_hand = self.seen(state, (obs - mean) / std)
            acts = (agent.compute_actions, agent.evaluate_actions)
            return (
                [act(trained, self.seen(state, obs), KEY)[0] for act in acts],
                [act(plain, by_hand, KEY)[0] for act in acts],
            )

        actions, expected = jax.jit(act)(KEY)
        assert_close(actions, expected, 1e-3)
        assert any((a != b).any() for a, b in zip(actions, [acted["explored"][0], acted["evaluated"]], strict=True))

    def test_a_misspelt_setting_is_refused_in_words(self, env: VectorEnv) -> None:
        with raises_naming(ValueError, "'normalise_obs'", "'normalize_obs'"):
            self.make(env, normalise_obs=True)

    def test_it_is_the_same_from_the_same_settings(self, env: VectorEnv, agent: Agent) -> None:
        other = self.make(env)
        assert jax.tree.structure(other) == jax.tree.structure(agent)
        assert_identical(other, agent)
