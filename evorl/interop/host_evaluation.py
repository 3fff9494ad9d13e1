"""Evaluation on the host: plays complete episodes with an agent of any framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from evorl.config.values import positive
from evorl.envs.gymnasium import bodies_of
from evorl.envs.host.answers import as_flag, as_reward, as_start, as_step, refuse_exit
from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.envs.host.seed_bits import fold_seeds
from evorl.episodes.host_step_record import HostStepRecord
from evorl.interop.agent_calls import env_step_for
from evorl.interop.transitions import own_copy
from evorl.interop.vector_collector import rows_where
from evorl.metrics import EvaluationMetrics
from evorl.ops.trees import row_of


def play_on_host(env: Any, agent: Any, num_episodes: int, seed: int = 0, keep_steps: int = 0) -> EvaluationMetrics:
    """Play ``num_episodes`` episodes with ``agent.eval_step``; return episode returns, lengths and recorded steps.

    Each simulator of a ``HostVectorEnv`` plays an equal share of the episodes, so that short ones are not favored.

    Args:
        env: environment with Gymnasium's interface, or a ``HostVectorEnv``; no other code may step it at the same time.
        agent: see ``HostAgent``; its ``eval_start`` is called if it has one.
        num_episodes: number of episodes.
        seed: seed of the episodes.
        keep_steps: number of episodes, from the first, whose steps are recorded.

    Raises:
        ValueError: ``num_episodes`` is not a positive integer, or less than ``keep_steps``.
        HostEnvError: the environment returns an invalid result, or a simulator of a vector environment fails.
    """
    num_episodes = positive(num_episodes, "num_episodes")
    if keep_steps > num_episodes:
        raise ValueError(f"keep_steps={keep_steps} must not exceed num_episodes={num_episodes}.")
    record = HostStepRecord(keep_steps)
    play = _play_rows if isinstance(env, HostVectorEnv) else _play_one_after_another
    try:
        returns, lengths = play(env, agent, num_episodes, seed, record)
    except BaseException as error:
        refuse_exit(error, "the environment or the agent of an evaluation")
        raise
    return EvaluationMetrics(
        episode_returns=np.asarray(returns, np.float32),
        episode_lengths=np.asarray(lengths, np.int32),
        steps=record.by_episode(),
    )


def _play_one_after_another(
    env: Any, agent: Any, num_episodes: int, seed: int, record: HostStepRecord
) -> tuple[list[float], list[int]]:
    returns, lengths, env_step = [], [], env_step_for(env, agent)
    for episode in range(num_episodes):
        obs = as_start(env.reset(seed=int(fold_seeds(seed)) if episode == 0 else None))
        _start(agent, True)
        total, length, is_over = 0.0, 0, False
        record.add_moment(episode, obs, bodies_of(env))
        while not is_over:
            action = agent.eval_step(obs)
            stored_action = own_copy(action)
            obs, reward, termination, truncation, _ = as_step(env_step(action))
            reward = as_reward(reward)
            termination, truncation = as_flag(termination, "terminated"), as_flag(truncation, "truncated")
            record.add_step(episode, stored_action, reward, termination)
            record.add_moment(episode, obs, bodies_of(env))
            total, length, is_over = total + reward, length + 1, termination or truncation
        returns.append(total)
        lengths.append(length)
    return returns, lengths


def _play_rows(env: HostVectorEnv, agent: Any, num_episodes: int, seed: int, record: HostStepRecord) -> tuple[Any, Any]:
    seeds, num_envs, env_step = np.random.default_rng(seed), env.num_envs, env_step_for(env, agent)
    returns, lengths = np.zeros(num_episodes), np.zeros(num_episodes, np.int64)
    episode = np.arange(num_envs)  # index of the episode in environment i: i, then i + B, i + 2 B, ...
    obs = own_copy(env.reset(fold_seeds(seeds.integers(0, 2**32, num_envs, np.uint64), env.seed_bits)))
    _start(agent, np.ones(num_envs, np.bool_))
    _add_moments(record, env, episode, obs, np.ones(num_envs, np.bool_))
    while (episode < num_episodes).any():
        action = agent.eval_step(obs)
        stored_action = own_copy(action)
        obs, reward, termination, truncation = own_copy(env_step(action)[:4])
        for row in np.flatnonzero(episode < record.num_episodes).tolist():
            record.add_step(episode[row], row_of(stored_action, row), reward[row], termination[row])
        _add_moments(record, env, episode, obs, np.ones(num_envs, np.bool_))
        counts = episode < num_episodes
        returns[episode[counts]] += reward[counts]
        lengths[episode[counts]] += 1
        is_over = np.asarray(termination) | np.asarray(truncation)
        episode = episode + num_envs * is_over
        if is_over.any() and (episode < num_episodes).any():
            new_seeds = fold_seeds(seeds.integers(0, 2**32, num_envs, np.uint64), env.seed_bits)
            start = env.partial_reset(is_over.copy(), new_seeds)
            obs = rows_where(is_over, start, obs)
            _start(agent, is_over)
            _add_moments(record, env, episode, obs, is_over)
    return returns, lengths


def _add_moments(record: HostStepRecord, env: HostVectorEnv, episode: np.ndarray, obs: Any, where: np.ndarray) -> None:
    rows: list[int] = np.flatnonzero(where & (episode < record.num_episodes)).tolist()
    physics = env.physics() if rows else {}
    for row in rows:
        record.add_moment(episode[row], row_of(obs, row), row_of(physics, row))


def _start(agent: Any, started: Any) -> None:
    if hasattr(agent, "eval_start"):
        agent.eval_start(started)
