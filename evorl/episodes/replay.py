"""Plays the episodes of an evaluation again, with one or several policies, and records every step."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.tree_util import Partial

from evorl.agent import AgentState
from evorl.envs.vector import VectorEnv
from evorl.episodes.recorder import recorded_episodes
from evorl.episodes.saved_episode import SavedEpisode
from evorl.evaluators.episodes import most_steps
from evorl.evaluators.evaluator import Evaluator
from evorl.metrics import EvaluationMetrics
from evorl.ops.processes import on_host
from evorl.rollout import ActionFn
from evorl.types import Key


class Player(NamedTuple):
    """A policy whose episodes are played and recorded.

    Attributes:
        title: name of the player in the titles of its episodes, see ``episode_title``; may be empty.
        agent_state: state of the agent.
        num_episodes: number of episodes that it plays.
    """

    title: str
    agent_state: AgentState
    num_episodes: int


def replay_episodes(
    env: VectorEnv, action_fn: ActionFn, players: Sequence[Player], key: Key
) -> list[tuple[str, SavedEpisode]]:
    """Play the episodes of each player; return ``(title, episode)`` for every episode, in the order of players.

    Args:
        env: vector environment without automatic resets (``AutoresetMode.DISABLED``); its states then include physics.
        action_fn: function that selects actions, usually ``agent.evaluate_actions``.
        players: policies; episode i has the same random numbers for all of them.
        key: key of the evaluation; the first episodes of this evaluation are played.
    """
    env.show_physics()
    act = Partial(action_fn.__func__, action_fn.__self__) if inspect.ismethod(action_fn) else Partial(action_fn)
    episodes = []
    for title, agent_state, number in players:
        results = on_host(_results(act, agent_state, key, env, number))
        for _, i, episode in recorded_episodes(results, number):
            episodes.append((episode_title(title, i, number), episode))
    return episodes


@functools.partial(jax.jit, static_argnames=("env", "number"))
def _results(act: Partial, agent_state: AgentState, key: Key, env: VectorEnv, number: int) -> EvaluationMetrics:
    """Play ``number`` episodes; ``act`` contains the agent as a pytree, so that equal agents share a program."""
    evaluator = Evaluator(env=env, agent_fn=act, max_episode_steps=most_steps(env), keep_steps=number)
    return evaluator.evaluate(agent_state, key, number)


def episode_title(title: str, number: int, of: int) -> str:
    """Return ``<title> episode <number + 1>``; of a single episode (``of`` is 1) only ``title``, unless empty."""
    return title if of == 1 and title else f"{title} episode {number + 1}".strip()
