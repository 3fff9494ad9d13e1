"""All probes as one environment: each episode is one of them, drawn at random, and the observation says which.

One training then solves every probe, with one compiled program; what it learned is checked probe by probe.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import Agent, AgentState
from evorl.envs import Box, Env, EnvState, Space
from evorl.envs.wrappers import EpisodeWrapper, VmapAutoResetWrapper, VmapWrapper
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from evorl.workflows import Workflow
from tests.probe_envs import PROBES, TIME_LIMIT, ProbeEnv

NAMES = tuple(PROBES)
ACTION_NAMES = ("best_action", "observation_dependent_action")
KINDS = {"discrete": False, "continuous": True}
DISCOUNT = 0.9
# Observations that an episode can meet.
REACHED = {
    "value_is_reward": [0.0],
    "value_is_observation": [-1.0, 1.0],
    "discounting": [0.0, 1.0],
    "best_action": [0.0],
    "observation_dependent_action": [-1.0, 1.0],
    "time_limit": [0.0],
    "termination": [t / TIME_LIMIT for t in range(TIME_LIMIT)],
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


def assert_values_are_known(agent: Any, agent_state: AgentState, name: str, continuous: bool) -> None:
    """An actor-critic's values in a probe are within 1 % of the true ones."""
    obs, values, _ = questions(name, continuous)
    np.testing.assert_allclose(agent.values(agent_state, agent_state.params, obs), values, rtol=0.01)


def assert_actions_are_best(agent: Agent, agent_state: AgentState, name: str, continuous: bool) -> None:
    """Its actions in a probe are within 0.05 of the best, the right ones if they are discrete."""
    obs, _, best = questions(name, continuous)
    actions, _ = agent.evaluate_actions(agent_state, SampleBatch(obs=obs), jax.random.key(0))
    np.testing.assert_allclose(actions, best, atol=0.05)
