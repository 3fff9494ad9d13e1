"""All probes as one environment: each episode is one of them, drawn at random, and the observation says which.

One training then solves every probe, with one compiled program; what it learned is checked probe by probe.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import Agent, AgentState
from evorl.envs import Box, Env, EnvState, Space
from evorl.envs.wrappers import EpisodeWrapper, VmapAutoResetWrapper, VmapWrapper
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.rollout import rollout
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from evorl.workflows.workflow import Workflow
from tests.support.compilation import compiled_to_run_long
from tests.support.probe_envs import PROBES, TIME_LIMIT, ProbeEnv

NAMES = tuple(PROBES)
ACTION_NAMES = ("best_action", "observation_dependent_action")
KINDS = {"discrete": False, "continuous": True}
DISCOUNT = 0.8
# Observations that an episode can meet.
REACHED = {
    "value_is_reward": [0.0],
    "value_is_observation": [-1.0, 1.0],
    "discounting": [0.0, 1.0],
    "best_action": [0.0],
    "observation_dependent_action": [-1.0, 1.0],
    "time_limit": [0.0],
    "termination": [2 * t / TIME_LIMIT - 1 for t in range(TIME_LIMIT)],
}


class EveryProbe(Env):
    """Observations ``[1 + number of probes]``: that of the probe, and which it is."""

    def __init__(self, continuous: bool) -> None:
        self.probes = [ProbeEnv(name, continuous) for name in NAMES]
        lengths = np.array([probe.probe.num_steps or TIME_LIMIT for probe in self.probes])
        self._share = jnp.asarray(1 / lengths / (1 / lengths).sum())  # as many steps of each

    @property
    def obs_space(self) -> Space:
        return Box(-jnp.inf, jnp.inf, (1 + len(NAMES),))

    @property
    def action_space(self) -> Space:
        return self.probes[0].action_space

    def reset(self, key: jax.Array) -> EnvState:
        which_key, start_key = jax.random.split(key)
        which = jax.random.choice(which_key, len(NAMES), p=self._share)
        return self._chosen(which, [probe.reset(start_key) for probe in self.probes])

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        which, inner = env_state.env_state.which, env_state.replace(env_state=env_state.env_state.inner)
        return self._chosen(which, [probe.step(inner, action) for probe in self.probes])

    def _chosen(self, which: jax.Array, states: list[EnvState]) -> EnvState:
        state = jax.tree.map(lambda *leaves: jnp.stack(leaves)[which], *states)
        inner = PyTreeDict(which=which, inner=state.env_state)
        return state.replace(env_state=inner, obs=jnp.append(state.obs, jax.nn.one_hot(which, len(NAMES))))


def every_probe(continuous: bool, num_envs: int) -> VmapAutoResetWrapper:
    """Many of them side by side, with the probes' time limit."""
    return VmapAutoResetWrapper(EpisodeWrapper(EveryProbe(continuous), TIME_LIMIT), num_envs)


def questions(name: str, continuous: bool) -> tuple[jax.Array, np.ndarray, np.ndarray | None]:
    """Of a probe: all its observations ``[N, ...]``, their values, and the best actions if actions matter."""
    probe = ProbeEnv(name, continuous)
    own = jnp.asarray(REACHED[name])[:, None]
    which = jnp.broadcast_to(jax.nn.one_hot(NAMES.index(name), len(NAMES)), (own.shape[0], len(NAMES)))
    best = probe.best_action(own)
    return (
        jnp.concatenate([own, which], axis=1),
        np.asarray(probe.value(own, DISCOUNT)),
        None if best is None else np.asarray(best),
    )


@compiled_to_run_long()
def train_on_every_probe(
    cls: type[Workflow], settings: dict[str, Any], continuous: bool, num_envs: int, **fields: Any
) -> tuple[bool, Agent, AgentState]:
    """An agent of ``settings`` after a training on all probes: whether actions are continuous, the agent, its state."""
    env = every_probe(continuous, num_envs)
    workflow = cls(
        env=env,
        eval_env=VmapWrapper(env.env, 4),
        agent=cls.make_agent(settings, env),
        discount=DISCOUNT,
        eval_interval=0.0,
        **fields,
    )
    return continuous, workflow.agent, workflow.learn().agent_state


def train_soft_actor_critic(
    cls: type[Workflow], settings: dict[str, Any], continuous: bool, **fields: Any
) -> tuple[bool, Agent, AgentState]:
    """``train_on_every_probe`` for this family. Entropy hardly counts, so that soft values are the values."""
    optimizer = Optimizer(learning_rate=Schedule(3e-3, 0.0))
    fields = {"actor_optimizer": optimizer.replace(learning_rate=1e-3), "critic_optimizer": optimizer} | fields
    return train_on_every_probe(
        cls,
        {"network": {"torso": [64, 64], "orthogonal": True}, "temperature": 1e-3, "adaptive_temperature": False}
        | settings,
        continuous,
        num_envs=16,
        **{"updates_per_iteration": 4, "batch_size": 256, "tau": 0.02, "total_timesteps": 16 * 800} | fields,
        learning_starts=1600.0,
        replay_capacity=16_000,
    )


def assert_values_are_known(
    agent: Any, agent_state: AgentState, name: str, continuous: bool, atol: float = 0.0
) -> None:
    """An actor-critic's values in a probe, those of each critic, are within 1 % and ``atol`` of the true ones."""
    obs, values, _ = questions(name, continuous)
    learned = agent.values(agent_state, agent_state.params, obs)
    assert learned.shape[-1:] == values.shape
    np.testing.assert_allclose(learned, np.broadcast_to(values, learned.shape), rtol=0.01, atol=atol)


def assert_actions_are_best(agent: Agent, agent_state: AgentState, name: str, continuous: bool) -> None:
    """Its actions in a probe are within 0.05 of the best, the right ones if they are discrete."""
    obs, _, best = questions(name, continuous)
    actions, _ = agent.evaluate_actions(agent_state, SampleBatch(obs=obs), jax.random.key(0))
    np.testing.assert_allclose(actions, best, atol=0.05)


class ActorCriticProbes:
    """Tests of an actor-critic in all probes. A class below is named ``Test...`` and says how to train."""

    @staticmethod
    def train(continuous: bool) -> tuple[bool, Any, AgentState]:
        """What ``train_on_every_probe`` gives."""
        raise NotImplementedError

    @pytest.fixture(scope="class", params=KINDS)
    @classmethod
    def trained(cls, request: pytest.FixtureRequest) -> tuple[bool, Any, AgentState]:
        return cls.train(KINDS[request.param])

    @pytest.mark.parametrize("name", NAMES)
    def test_values_of_a_probe(self, trained: tuple, name: str) -> None:
        continuous, agent, agent_state = trained
        assert_values_are_known(agent, agent_state, name, continuous)

    @pytest.mark.parametrize("name", ACTION_NAMES)
    def test_actions_in_a_probe(self, trained: tuple, name: str) -> None:
        continuous, agent, agent_state = trained
        assert_actions_are_best(agent, agent_state, name, continuous)


class RecurrentActorCriticProbes(ActorCriticProbes):
    """The same of a recurrent agent, which is asked along episodes that it plays."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, trained: tuple) -> tuple[bool, SampleBatch, np.ndarray]:
        """Whether actions are continuous, a trajectory ``[T, B]`` of the best actions, and the values along it."""
        continuous, agent, agent_state = trained
        env = every_probe(continuous, 64)

        def play(key: jax.Array) -> tuple[SampleBatch, jax.Array]:
            start = env.reset(key)
            trajectory, _ = rollout(env.step, agent.evaluate_actions, start, agent_state, key, 3 * TIME_LIMIT)
            return trajectory, agent.estimates_of_trajectory(agent_state, agent_state.params, trajectory)[0].values

        return continuous, *jax.jit(play)(jax.random.key(1))

    @staticmethod
    def _rows(played: tuple, name: str) -> tuple[ProbeEnv, jax.Array, np.ndarray, np.ndarray]:
        """The probe, and what was seen, done and expected in it."""
        continuous, trajectory, values = played
        is_there = np.asarray(trajectory.obs[..., 1 + NAMES.index(name)]) == 1.0
        assert is_there.any()
        seen = jnp.asarray(np.asarray(trajectory.obs)[is_there][:, :1])
        return ProbeEnv(name, continuous), seen, np.asarray(trajectory.actions)[is_there], np.asarray(values)[is_there]

    @pytest.mark.parametrize("name", NAMES)
    def test_values_of_a_probe(self, played: tuple, name: str) -> None:
        probe, seen, _, values = self._rows(played, name)
        np.testing.assert_allclose(values, probe.value(seen, DISCOUNT), rtol=0.01)

    @pytest.mark.parametrize("name", ACTION_NAMES)
    def test_actions_in_a_probe(self, played: tuple, name: str) -> None:
        probe, seen, actions, _ = self._rows(played, name)
        np.testing.assert_allclose(actions, probe.best_action(seen), atol=0.05)
