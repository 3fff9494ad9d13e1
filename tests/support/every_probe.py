"""All probe environments as one: each episode is a random probe, identified by the observation.

One training run then solves every probe with one compiled program; the results are checked per probe.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import Agent, AgentState
from evorl.agents.actor_critic import ActorCriticBatch
from evorl.envs import Box, Env, EnvState, Space
from evorl.envs.wrappers import EpisodeWrapper, VmapAutoResetWrapper, VmapWrapper
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.rollout import rollout
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from evorl.workflows.workflow import Workflow
from tests.support.compilation import compiled_to_run_long
from tests.support.probe_envs import PROBES, TIME_LIMIT, ProbeEnv, score
from tests.support.toy_envs import toy_state

NAMES = tuple(PROBES)
ACTION_NAMES = ("best_action", "observation_dependent_action")
KINDS = {"discrete": False, "continuous": True}
DISCOUNT = 0.8
# Reachable observations of each probe.
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
    """Observations ``[1 + number of probes]``: the probe's observation, and the one-hot probe.

    Everything is looked up in tables ``[starts, steps]``, since thirty training runs compile it.
    """

    def __init__(self, continuous: bool) -> None:
        self.continuous, self._tables = continuous, _tables(continuous)

    @property
    def obs_space(self) -> Space:
        return Box(-jnp.inf, jnp.inf, (1 + len(NAMES),))

    @property
    def action_space(self) -> Space:
        return ProbeEnv(NAMES[0], self.continuous).action_space

    def reset(self, key: jax.Array) -> EnvState:
        start = (jax.random.uniform(key) >= self._tables.before[1:]).sum()
        return self._state(start, jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros((), jnp.bool_))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        tables, place = self._tables, (env_state.env_state.start, env_state.env_state.t)
        scored = score(action, jnp.asarray(tables.best)[place], self.continuous)
        reward = jnp.asarray(tables.reward)[place] + jnp.asarray(tables.counts)[place] * scored
        return self._state(place[0], place[1] + 1, reward, jnp.asarray(tables.ends)[place])

    def _state(self, start: jax.Array, t: jax.Array, reward: jax.Array, ends: jax.Array) -> EnvState:
        return toy_state(PyTreeDict(start=start, t=t), jnp.asarray(self._tables.obs)[start, t], reward, ends)

    def _identity(self) -> bool:
        return self.continuous


@functools.cache
def _tables(continuous: bool) -> PyTreeDict:
    """Return the tables of all probes for each start and step of an episode."""
    starts = [(name, first) for name, probe in PROBES.items() for first in probe.firsts]
    # Equally many steps of each probe, and of each of its starts.
    shares = [1 / (PROBES[name].num_steps or TIME_LIMIT) / len(PROBES[name].firsts) for name, _ in starts]

    def of_a_step(name: str, first: float, t: jax.Array) -> dict[str, jax.Array]:
        env, probe = ProbeEnv(name, continuous), PROBES[name]
        obs = jnp.asarray(probe.later_obs(jnp.float32(first), t), jnp.float32)
        best = env.best_action(obs[None])
        unscored, scored = (jnp.float32(probe.reward(obs, t, jnp.float32(number))) for number in (0.0, 1.0))
        return {
            "obs": jnp.append(obs, jax.nn.one_hot(NAMES.index(name), len(NAMES))),
            "best": env.action_space.zeros() if best is None else best,
            "reward": unscored,
            "counts": scored - unscored,
            "ends": jnp.asarray(probe.num_steps is not None and t + 1 >= probe.num_steps),
        }

    @jax.jit
    def of_all() -> dict[str, jax.Array]:
        steps = jnp.arange(TIME_LIMIT + 1)
        rows = [jax.vmap(functools.partial(of_a_step, name, first))(steps) for name, first in starts]
        return jax.tree.map(lambda *row: jnp.stack(row), *rows)

    return PyTreeDict(jax.tree.map(np.asarray, of_all()), before=np.cumsum([0.0, *shares[:-1]]) / np.sum(shares))


def every_probe(continuous: bool, num_envs: int) -> VmapAutoResetWrapper:
    """Return ``num_envs`` environments with the probes' time limit."""
    return VmapAutoResetWrapper(EpisodeWrapper(EveryProbe(continuous), TIME_LIMIT), num_envs)


class Answers:
    """An agent's actions and values for every observation of all probes, computed by one program.

    Args:
        continuous: use continuous actions.
        agent: the agent.
        agent_state: its state.
        values: (state, observations ``[N, ...]``) -> values ``[..., N]`` of the best actions; ``None``: values of
            each critic of an actor-critic.
    """

    def __init__(
        self,
        continuous: bool,
        agent: Any,
        agent_state: AgentState,
        values: Callable[[Any, jax.Array], jax.Array] | None = None,
    ) -> None:
        self.known = _questions(continuous)
        values = values or (lambda state, obs: agent.values(state, state.params, obs))

        @jax.jit
        def ask(state: AgentState, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
            return values(state, obs), agent.evaluate_actions(state, SampleBatch(obs=obs), jax.random.key(0))[0]

        learned, actions = ask(agent_state, np.concatenate([probe.obs for probe in self.known.values()]))
        ends = np.cumsum([len(probe.obs) for probe in self.known.values()])[:-1]
        self.values = dict(zip(NAMES, np.split(np.asarray(learned), ends, axis=-1), strict=True))
        self.actions = dict(zip(NAMES, np.split(np.asarray(actions), ends), strict=True))

    def assert_values_are_known(self, name: str, atol: float = 0.0) -> None:
        """Assert that values of each critic in a probe are within 1 % and ``atol`` of the true values."""
        learned, values = self.values[name], self.known[name].values
        assert learned.shape[-1:] == values.shape
        np.testing.assert_allclose(learned, np.broadcast_to(values, learned.shape), rtol=0.01, atol=atol)

    def assert_actions_are_best(self, name: str) -> None:
        """Assert that actions in a probe are within 0.05 of the best, and equal if they are discrete."""
        np.testing.assert_allclose(self.actions[name], self.known[name].best, atol=0.05)


class Question(NamedTuple):
    """All observations ``[N, ...]`` of a probe, their values, and the best actions."""

    obs: np.ndarray
    values: np.ndarray
    best: np.ndarray


@functools.cache
def _questions(continuous: bool) -> dict[str, Question]:
    @jax.jit
    def known() -> dict[str, Question]:
        return {name: question(name) for name in NAMES}

    def question(name: str) -> Question:
        probe, own = ProbeEnv(name, continuous), jnp.asarray(REACHED[name])[:, None]
        which = jnp.broadcast_to(jax.nn.one_hot(NAMES.index(name), len(NAMES)), (own.shape[0], len(NAMES)))
        best = probe.best_action(own) if name in ACTION_NAMES else jnp.full(len(own), jnp.nan)
        return Question(jnp.concatenate([own, which], axis=1), probe.value(own, DISCOUNT), best)

    known_answers = jax.tree.map(np.asarray, known())
    return {name: known_answers[name] for name in NAMES}


def train_on_every_probe(
    cls: type[Workflow],
    settings: dict[str, Any],
    continuous: bool,
    num_envs: int,
    runs_long: bool = False,
    **fields: Any,
) -> tuple[bool, Agent, AgentState]:
    """Train an agent with ``settings`` on all probes; return ``continuous``, the agent and its state.

    ``runs_long`` selects compilation for speed, for training that takes longer than compiling.
    """
    env = every_probe(continuous, num_envs)
    workflow = cls(
        env=env,
        eval_env=VmapWrapper(env.env, 4),
        agent=cls.make_agent(settings, env),
        discount=DISCOUNT,
        eval_interval=0.0,
        log_interval=1e9,
        **fields,
    )
    with compiled_to_run_long() if runs_long else contextlib.nullcontext():
        return continuous, workflow.agent, workflow.learn().agent_state


def train_soft_actor_critic(
    cls: type[Workflow], settings: dict[str, Any], continuous: bool, **fields: Any
) -> tuple[bool, Agent, AgentState]:
    """Run ``train_on_every_probe`` for this family, with so little entropy that soft values equal the values."""
    critic, actor = (Optimizer(learning_rate=Schedule(rate, 0.0)) for rate in (5e-3, 1.7e-3))
    fields = {"actor_optimizer": actor, "critic_optimizer": critic} | fields
    return train_on_every_probe(
        cls,
        {"network": {"torso": [64, 64], "orthogonal": True}, "temperature": 1e-3, "adaptive_temperature": False}
        | settings,
        continuous,
        num_envs=16,
        **{"updates_per_iteration": 4, "batch_size": 64, "tau": 0.03, "total_timesteps": 16 * 500} | fields,
        learning_starts=800.0,
        replay_capacity=8000,
    )


class ActorCriticProbes:
    """Tests of an actor-critic in all probes. A subclass is named ``Test...`` and defines ``train``."""

    @staticmethod
    def train(continuous: bool) -> tuple[bool, Any, AgentState]:
        """Return the result of ``train_on_every_probe``."""
        raise NotImplementedError

    @pytest.fixture(scope="class", params=KINDS)
    @classmethod
    def trained(cls, request: pytest.FixtureRequest) -> tuple[bool, Any, AgentState]:
        return cls.train(KINDS[request.param])

    @pytest.fixture(scope="class")
    @classmethod
    def answers(cls, trained: tuple) -> Answers:
        return Answers(*trained)

    @pytest.mark.parametrize("name", NAMES)
    def test_values_of_a_probe(self, answers: Answers, name: str) -> None:
        answers.assert_values_are_known(name)

    @pytest.mark.parametrize("name", ACTION_NAMES)
    def test_actions_in_a_probe(self, answers: Answers, name: str) -> None:
        answers.assert_actions_are_best(name)


class RecurrentActorCriticProbes(ActorCriticProbes):
    """Tests of a recurrent actor-critic, evaluated along its own episodes."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, trained: tuple) -> tuple[bool, SampleBatch, np.ndarray]:
        """Return ``continuous``, a trajectory ``[T, B]`` of greedy actions, and the values along it."""
        continuous, agent, agent_state = trained
        env = every_probe(continuous, 64)

        def play(key: jax.Array) -> tuple[SampleBatch, jax.Array]:
            start = env.reset(key)
            trajectory, _ = rollout(env.step, agent.evaluate_actions, start, agent_state, key, 3 * TIME_LIMIT)
            batch = ActorCriticBatch(
                obs=trajectory.obs,
                raw_actions=None,
                log_probs=jnp.zeros(()),
                dones=trajectory.dones,
                recurrent_state=trajectory.extras.recurrent_state,
            )
            return trajectory, agent.estimates_of_batch(agent_state, agent_state.params, batch).values

        return continuous, *jax.jit(play)(jax.random.key(1))

    @staticmethod
    def _rows(played: tuple, name: str) -> tuple[Question, np.ndarray, np.ndarray]:
        """Return the probe's known values for the observed steps, and the actions and estimated values there."""
        continuous, trajectory, values = played
        obs = np.asarray(trajectory.obs)
        is_there = obs[..., 1 + NAMES.index(name)] == 1.0
        assert is_there.any()
        known = _questions(continuous)[name]
        which = (obs[is_there][:, None, 0] == known.obs[:, 0]).argmax(axis=1)
        seen = Question(*(part[which] for part in known))
        np.testing.assert_array_equal(seen.obs, obs[is_there])
        return seen, np.asarray(trajectory.actions)[is_there], np.asarray(values)[is_there]

    @pytest.mark.parametrize("name", NAMES)
    def test_values_of_a_probe(self, played: tuple, name: str) -> None:
        seen, _, values = self._rows(played, name)
        np.testing.assert_allclose(values, seen.values, rtol=0.01)

    @pytest.mark.parametrize("name", ACTION_NAMES)
    def test_actions_in_a_probe(self, played: tuple, name: str) -> None:
        seen, actions, _ = self._rows(played, name)
        np.testing.assert_allclose(actions, seen.best, atol=0.05)
