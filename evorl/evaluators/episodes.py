"""Complete episodes, played side by side until all have ended: the one loop under every evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.config.names import did_you_mean, load
from evorl.envs.env import EnvState
from evorl.envs.vector import VectorEnv, env_title
from evorl.ops.collectives import any_under_vmap
from evorl.ops.normalization import RunningStatistics, add_row, init_statistics
from evorl.ops.trees import Packed, finite_rows, pack, tree_where
from evorl.rollout import ActionFn, env_step, with_recurrent_state
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, PyTreeData, PyTreeDict

Tree = TypeVar("Tree")
DEFAULT_MAX_EPISODE_STEPS = 1000
NO_FAULT = 2**31 - 1  # the step of a fault where there is none
_OF_POLICY = -1  # instead of it, once an action was not finite: what follows is no fault of the environment
_STEP_RECORD = "evorl.evaluators.step_record:new_step_record"  # loaded where episodes are kept


def longest_episode(env: VectorEnv) -> int:
    """Return the most steps that an episode can have.

    Raises:
        ValueError: the environment has no time limit, so an evaluation would truncate episodes that training does not.
    """
    if env.max_episode_steps is None:
        raise ValueError(
            f"episodes of {env_title(env)} have no time limit, so an evaluation might never end: set one in steps, as "
            f"in env.max_episode_steps={DEFAULT_MAX_EPISODE_STEPS}."
        )
    return env.max_episode_steps


def most_steps(env: VectorEnv) -> int:
    """Return the time limit of an environment, or ``DEFAULT_MAX_EPISODE_STEPS`` without one."""
    return env.max_episode_steps or DEFAULT_MAX_EPISODE_STEPS


class EpisodeOutcomes(PyTreeData):
    """What came of B episodes.

    Attributes:
        returns: float32 ``[B]``.
        lengths: in steps, int32 ``[B]``.
        totals: sums over the episode of the named entries of ``info``, ``[B, ...]`` each.
        last: their values at the episode's last step.
        first: their values before its first.
        observed: statistics ``[B]`` of the observations the agent acted on; ``None`` unless wanted.
        transitions: every step, ``[B, T, ...]``, as a rollout gives them; past ``lengths`` they mean nothing, and an
            episode that was cut is ``done`` at its last step. ``None`` unless wanted.
        steps: an ``EpisodeSteps`` of the first so many of them; ``None`` unless wanted.
        faults: the first step from 0 on at which the environment gave numbers that are not finite, although all actions
            before were finite (``NO_FAULT`` without one), and 0 if these were rewards, 1 if observations; int32
            ``[B, 2]``. ``None`` unless wanted.
    """

    returns: jax.Array
    lengths: jax.Array
    totals: PyTreeDict
    last: PyTreeDict
    observed: RunningStatistics | None
    transitions: SampleBatch | None = None
    first: PyTreeDict | None = None
    steps: Any = None
    faults: jax.Array | None = None

    def with_step(
        self, alive: jax.Array, rewards: jax.Array, fields: PyTreeDict, obs: Observation, actions: Action
    ) -> Self:
        """With one more step of the episodes that are alive, bool ``[B]``; every other argument is ``[B, ...]``."""
        return self.replace(
            faults=None if self.faults is None else self._faults_after(alive, rewards, obs, actions),
            returns=self.returns + jnp.where(alive, rewards, 0.0),
            lengths=self.lengths + alive,
            totals=jax.tree.map(lambda total, x: total + tree_where(alive, x, 0.0), self.totals, fields),
            last=jax.tree.map(lambda last, x: tree_where(alive, x, last), self.last, fields),
            observed=None if self.observed is None else jax.vmap(add_row)(self.observed, obs, alive),
        )

    def _faults_after(self, alive: jax.Array, rewards: jax.Array, obs: Observation, actions: Action) -> jax.Array:
        assert self.faults is not None, "asked for where there are faults"
        step, kind = self.faults[:, 0], self.faults[:, 1]
        seen_bad, acted_well, paid_bad = ~finite_rows(obs), finite_rows(actions), ~jnp.isfinite(rewards)
        is_fault = alive & (step == NO_FAULT) & (seen_bad | (acted_well & paid_bad))
        blames_policy = alive & (step == NO_FAULT) & ~is_fault & ~acted_well
        step = jnp.where(is_fault, self.lengths, jnp.where(blames_policy, _OF_POLICY, step))
        return jnp.stack([step, jnp.where(is_fault, seen_bad, kind)], axis=1)


class _Progress(PyTreeData):
    env_state: EnvState
    outcomes: EpisodeOutcomes
    recorded: Packed[SampleBatch] | None  # [T, B, features]
    kept: Any  # a StepRecord
    ended: jax.Array  # [B]
    step: jax.Array


def play_episodes(
    env: VectorEnv,
    action_fn: ActionFn,
    agent_state: AgentState,
    keys: tuple[Key, Key],
    wanted: jax.Array,
    max_episode_steps: int,
    discount: jax.Array | float = 1.0,
    env_fields: Sequence[str] = (),
    observe: bool = False,
    record: Sequence[str] | None = None,
    num_kept: int = 0,
    watch: bool = False,
) -> EpisodeOutcomes:
    """Play one episode in each row until all wanted ones have ended, or ``max_episode_steps``.

    Args:
        env: a vector environment in any autoreset mode; an episode is the first one after a reset.
        action_fn: ``agent.evaluate_actions`` or ``agent.compute_actions``.
        agent_state: of the agent.
        keys: each episode's key of its reset ``[B]`` and of its actions ``[B]``.
        wanted: bool ``[B]``; the others are not waited for, and their outcomes stay 0.
        max_episode_steps: an episode still running then is counted as it stands.
        discount: the weight of the reward at step t is ``discount ** t``.
        env_fields: entries of ``info`` to add up, see ``info_entries``.
        observe: whether to keep statistics of observations too.
        record: the entries of ``info`` to keep with recorded transitions, under ``extras.env_extras``; ``None`` records
            none.
        num_kept: of the first so many every step is given as ``steps``.
        watch: whether to look for ``faults`` of environments.

    Raises:
        ValueError: ``info`` has no such entry; in words.
    """
    reset_keys, action_keys = keys
    env_state = with_recurrent_state(env.reset(reset_keys), agent_state)

    def one_step(env_state: EnvState, step: jax.Array | int) -> tuple[EnvState, SampleBatch]:
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(action_keys, step)
        env_state, transition = env_step(env.step, action_fn, env_state, agent_state, step_keys, record or ())
        if record is not None:
            transition = transition.replace(dones=transition.dones | (step + 1 == max_episode_steps))
        return env_state, transition

    def running(progress: _Progress) -> jax.Array:
        return any_under_vmap(~progress.ended) & (progress.step < max_episode_steps)

    def advance(progress: _Progress) -> _Progress:
        env_state, transition = one_step(progress.env_state, progress.step)
        rewards = jnp.asarray(discount, jnp.float32) ** progress.step * transition.rewards
        fields = info_entries(env_state.info, env_fields)
        outcomes = progress.outcomes.with_step(~progress.ended, rewards, fields, transition.obs, transition.actions)
        recorded = progress.recorded
        if recorded is not None:
            row = pack(transition)
            recorded = jax.tree.map(lambda rows, row: rows.at[progress.step].set(row), recorded, row)
        kept = progress.kept and progress.kept.with_step(env, progress.step, transition, env_state)
        ended, step = progress.ended | transition.dones, progress.step + 1
        return _Progress(env_state=env_state, outcomes=outcomes, recorded=recorded, kept=kept, ended=ended, step=step)

    progress = _Progress(
        env_state=env_state,
        outcomes=_no_outcomes(env_state, env_fields, observe, watch),
        recorded=None if record is None else _room(lambda: pack(one_step(env_state, 0)[1]), max_episode_steps),
        kept=load(_STEP_RECORD)(env, env_state, num_kept, max_episode_steps) if num_kept else None,
        ended=~wanted,
        step=jnp.zeros((), jnp.int32),
    )
    first = jax.tree.map(lambda x: tree_where(wanted, x, 0.0), info_entries(env_state.info, env_fields))
    return _told(jax.lax.while_loop(running, advance, progress), first)


def _told(progress: _Progress, first: PyTreeDict) -> EpisodeOutcomes:
    """What came of episodes that have been played, with what was recorded of them."""
    outcomes = progress.outcomes.replace(first=first, steps=progress.kept and progress.kept.by_episode())
    if outcomes.faults is not None:
        faults = jnp.where(outcomes.faults == _OF_POLICY, NO_FAULT, outcomes.faults)
        outcomes = outcomes.replace(faults=faults)
    if progress.recorded is None:
        return outcomes
    transitions = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), progress.recorded).unpack()
    return outcomes.replace(transitions=transitions)


def _no_outcomes(env_state: EnvState, env_fields: Sequence[str], observe: bool, watch: bool) -> EpisodeOutcomes:
    """What came of the episodes of these environments before their first step."""
    rows = env_state.done.shape
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), info_entries(env_state.info, env_fields))
    return EpisodeOutcomes(
        returns=jnp.zeros(rows, jnp.float32),
        lengths=jnp.zeros(rows, jnp.int32),
        totals=zeros,
        last=zeros,
        observed=jax.vmap(init_statistics)(env_state.obs) if observe else None,
        faults=jnp.tile(jnp.array([NO_FAULT, 0], jnp.int32), (*rows, 1)) if watch else None,
    )


def _room(row: Callable[[], Tree], num_steps: int) -> Tree:
    """Zeros ``[T, ...]`` for as many rows like this one, which is not computed."""
    return jax.tree.map(lambda x: jnp.zeros((num_steps, *x.shape), x.dtype), jax.eval_shape(row))


def transition_rows(outcomes: EpisodeOutcomes) -> tuple[SampleBatch, jax.Array]:
    """Recorded transitions as a replay ring of one environment takes them: episode after episode, step after step.

    Args:
        outcomes: with transitions; leading axes of any number, M rows with all their steps.

    Returns:
        The rows ``[M, 1, ...]``, and which of them are to be learned from, bool ``[M]``: the ``mask`` of ``add``. These
        are the steps of episodes in which all numbers are finite.
    """
    transitions, lengths = outcomes.transitions, outcomes.lengths
    if transitions is None:
        raise ValueError("these episodes were played without recording their transitions: play them with record=...")
    num_steps = transitions.dones.shape[lengths.ndim]
    is_step = jnp.arange(num_steps) < lengths[..., None]
    numbers = (transitions.obs, transitions.actions, transitions.rewards, transitions.next_obs)
    # Not the step alone: rows that follow one another are taken for one episode.
    is_whole = (finite_rows(numbers, is_step.ndim) | ~is_step).all(axis=-1, keepdims=True)
    rows = jax.tree.map(lambda x: x.reshape(-1, 1, *x.shape[lengths.ndim + 1 :]), transitions)
    return rows, (is_step & is_whole).reshape(-1)


def episode_keys(key: Key, episode_ids: jax.Array) -> tuple[Key, Key]:
    """The keys of resets ``[B]`` and of actions ``[B]`` of the episodes with these numbers."""
    fold_rows = jax.vmap(jax.random.fold_in, (None, 0))
    reset_key, action_key = jax.random.split(key)
    return fold_rows(reset_key, episode_ids), fold_rows(action_key, episode_ids)


def info_entries(info: PyTreeDict, names: Sequence[str]) -> PyTreeDict:
    """Entries of the ``info`` of B environments by name, float32.

    A dot goes one level down (``metrics.x_position``). At the end a number may stand, for one component of an entry
    that is a vector: ``next_obs.0`` is the first number of the observation that a step led to.

    Raises:
        ValueError: there is no such entry, with the nearest one that is there, or no such component.
    """
    entries: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(info):
        entries[".".join(str(getattr(entry, "key", getattr(entry, "name", entry))) for entry in path)] = leaf
    return PyTreeDict({name: _entry(entries, name).astype(jnp.float32) for name in names})


def _entry(entries: dict[str, jax.Array], name: str) -> jax.Array:
    if name in entries:
        return entries[name]
    entry, _, component = name.rpartition(".")
    if entry not in entries or not component.isdigit():
        raise ValueError(
            f"the environment's info has no entry {name!r}.{did_you_mean(name, entries)} There are: "
            f"{', '.join(sorted(entries))}."
        )
    values = entries[entry]
    if values.ndim != 2 or int(component) >= values.shape[1]:
        raise ValueError(f"{name!r} is no component of {entry}, which is of shape {list(values.shape[1:])}.")
    return values[:, int(component)]
