"""Complete episodes, run in parallel until all have ended: the common loop of all evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.config.names import did_you_mean
from evorl.envs.env import EnvState
from evorl.envs.remote import refuse_remote
from evorl.envs.vector import VectorEnv, env_title, without_step_info
from evorl.evaluators.step_record import new_step_record
from evorl.ops.collectives import any_under_vmap
from evorl.ops.normalization import RunningStatistics, add_row, init_statistics
from evorl.ops.platform import on_cpu
from evorl.ops.trees import Packed, finite_rows, pack, tree_where
from evorl.rollout import ActionFn, block_size, env_step, with_recurrent_state
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, PyTreeData, PyTreeDict

Tree = TypeVar("Tree")
Run = TypeVar("Run", bound=Any)
DEFAULT_MAX_EPISODE_STEPS = 1000
STEPS_AT_ONCE = 64  # steps between two checks whether all episodes have ended, on an accelerator
NO_FAULT = 2**31 - 1  # stands for "no fault" in place of a step number
_OF_POLICY = -1  # marks a non-finite action: later faults are not the environment's


def longest_episode(env: VectorEnv) -> int:
    """Return the maximum number of steps of an episode.

    Raises:
        ValueError: the environment has no time limit, so an evaluation might never end.
        HostEnvError: the environment consists of remote simulators.
    """
    refuse_remote(env)
    if env.max_episode_steps is None:
        raise ValueError(
            f"episodes of {env_title(env)} have no time limit, so an evaluation might never end: set one in steps, for "
            f"example env.max_episode_steps={DEFAULT_MAX_EPISODE_STEPS}."
        )
    return env.max_episode_steps


def most_steps(env: VectorEnv) -> int:
    """Return the time limit of an environment, or ``DEFAULT_MAX_EPISODE_STEPS`` if it has no limit."""
    return env.max_episode_steps or DEFAULT_MAX_EPISODE_STEPS


class EpisodeOutcomes(PyTreeData):
    """Outcomes of B episodes.

    Attributes:
        returns: discounted sums of rewards, float32 ``[B]``.
        lengths: number of steps, int32 ``[B]``.
        totals: undiscounted sums over the episode of the named entries of ``info``, float32 ``[B, ...]`` each.
        last: values of these entries at the last step.
        first: values of these entries before the first step.
        observed: statistics ``[B]`` of the observations on which the agent acted; ``None`` unless requested.
        transitions: every step, as a rollout returns it but ``[B, T, ...]``. Entries past ``lengths`` are undefined; an
            episode is ``done`` at its last step, also if truncated. ``None`` unless recorded.
        steps: an ``EpisodeSteps`` of the first n episodes; ``None`` unless recorded.
        faults: int32 ``[B, 2]``: the first step, from 0, with a non-finite reward or observation although all actions
            before were finite (``NO_FAULT`` without a fault); and 0 for a reward, 1 for an observation. ``None`` unless
            requested.
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

    def with_step(self, step: jax.Array, alive: jax.Array, rewards: jax.Array, fields: PyTreeDict, played: Any) -> Self:
        """Return outcomes after a step of ``alive`` episodes, given discounted ``rewards`` and ``(obs, actions)``."""
        return self.replace(
            faults=None if self.faults is None else self._faults_after(step, alive, rewards, *played),
            returns=self.returns + jnp.where(alive, rewards, 0.0),
            lengths=self.lengths + alive,
            totals=jax.tree.map(lambda total, x: total + tree_where(alive, x, 0.0), self.totals, fields),
            last=jax.tree.map(lambda last, x: tree_where(alive, x, last), self.last, fields),
            observed=None if self.observed is None else jax.vmap(add_row)(self.observed, played[0], alive),
        )

    def _faults_after(
        self, step: jax.Array, alive: jax.Array, rewards: jax.Array, obs: Observation, actions: Action
    ) -> jax.Array:
        assert self.faults is not None, "called only if faults are detected"
        # ``step`` equals ``lengths`` here; reading the scalar makes a step of 256 CartPoles on a CPU 10 % faster.
        seen_bad, acted_well, paid_bad = ~finite_rows(obs), finite_rows(actions), ~jnp.isfinite(rewards)
        is_open = alive & (self.faults == NO_FAULT)
        fault = jnp.where(acted_well, NO_FAULT, _OF_POLICY)
        fault = jnp.where(seen_bad | (acted_well & paid_bad), 2 * step + seen_bad, fault)
        return jnp.where(is_open, fault, self.faults)

    def with_faults(self) -> Self:
        """Return the outcomes with ``faults`` as ``[B, 2]``; while episodes run, ``faults`` is ``2 * step + kind``."""
        if self.faults is None:
            return self
        is_fault = (self.faults != NO_FAULT) & (self.faults != _OF_POLICY)
        step, kind = jnp.where(is_fault, self.faults // 2, NO_FAULT), jnp.where(is_fault, self.faults % 2, 0)
        return self.replace(faults=jnp.stack([step, kind], axis=1))


class _Progress(PyTreeData):
    env_state: EnvState
    outcomes: EpisodeOutcomes
    recorded: Packed[SampleBatch] | None  # [T, B, features]
    step_record: Any  # a StepRecord
    ended: jax.Array  # [B]
    step: jax.Array


def play_episodes(
    env: VectorEnv,
    action_fn: ActionFn,
    agent_state: AgentState,
    keys: tuple[Key, Key],
    is_played: jax.Array,
    max_episode_steps: int,
    *,
    discount: jax.Array | float = 1.0,
    env_fields: Sequence[str] = (),
    observe: bool = False,
    record: Sequence[str] | None = None,
    num_kept: int = 0,
    watch: bool = False,
) -> EpisodeOutcomes:
    """Play one episode per environment, until all requested episodes have ended or ``max_episode_steps`` is reached.

    Args:
        env: vectorized environment in any autoreset mode; only the first episode after a reset counts.
        action_fn: ``agent.evaluate_actions`` or ``agent.compute_actions``; it is called with ``agent_state``.
        keys: per-episode keys of the reset ``[B]`` and of the actions ``[B]``.
        is_played: bool ``[B]``; False skips the episode: its returns, lengths, totals, first and last are 0.
        max_episode_steps: episodes are truncated after this many steps.
        discount: the reward at step t is weighted by ``discount ** t``.
        env_fields: names of the entries of ``info`` in ``totals``, ``first`` and ``last``, see ``info_entries``.
        observe: also compute ``observed``, statistics of the observations.
        record: record ``transitions`` with these entries of ``info`` as ``extras.env_extras``; ``None`` disables it.
        num_kept: number of episodes, from the first, to record as ``steps``.
        watch: also detect ``faults``, non-finite rewards and observations of environments.

    Raises:
        ValueError: ``info`` lacks an entry of ``env_fields``.
    """
    env_state = with_recurrent_state(env.reset(keys[0]), agent_state)

    def one_step(env_state: EnvState, step: jax.Array | int) -> tuple[EnvState, SampleBatch]:
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys[1], step)
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
        played = (transition.obs, transition.actions)
        return _Progress(
            env_state=without_step_info(env_state),
            outcomes=progress.outcomes.with_step(progress.step, ~progress.ended, rewards, fields, played),
            recorded=_with_row(progress.recorded, progress.step, transition),
            step_record=progress.step_record
            and progress.step_record.with_step(env, progress.step, transition, env_state),
            ended=progress.ended | transition.dones,
            step=progress.step + 1,
        )

    progress = _Progress(
        env_state=without_step_info(env_state),
        outcomes=_no_outcomes(env_state, env_fields, observe, watch),
        recorded=None if record is None else _zeros_for(lambda: pack(one_step(env_state, 0)[1]), max_episode_steps),
        step_record=new_step_record(env, env_state, num_kept, max_episode_steps) if num_kept else None,
        ended=~is_played,
        step=jnp.zeros((), jnp.int32),
    )
    first = jax.tree.map(lambda x: tree_where(is_played, x, 0.0), info_entries(env_state.info, env_fields))
    return _outcomes_of(run_episodes(running, advance, progress, max_episode_steps), first)


def run_episodes(running: Callable[[Run], jax.Array], advance: Callable[[Run], Run], run: Run, num_steps: int) -> Run:
    """Advance parallel episodes while any is running, and return the final state.

    Args:
        running: returns True, a scalar, while an episode runs; must return False after ``num_steps`` steps.
        advance: takes one step of all episodes; must not change the results of episodes that have ``ended``.
        run: state with ``ended``, bool ``[B]``, and ``step``, the number of steps so far.
        num_steps: maximum number of steps.
    """
    if on_cpu():
        return jax.lax.while_loop(running, advance, run)
    # Accelerators wait for the host at each check of a loop's condition: here once per block of steps.
    size = block_size(num_steps, STEPS_AT_ONCE)
    size = size if size >= STEPS_AT_ONCE // 4 else min(num_steps, STEPS_AT_ONCE)

    def one_step(_: Any, run: Run) -> Run:
        run = advance(run)
        return run.replace(ended=run.ended | (run.step >= num_steps))

    def block(run: Run) -> Run:
        return jax.lax.fori_loop(0, size, one_step, run)

    def next_block(_: Any, run: Run) -> Run:
        return jax.lax.cond(running(run), block, lambda run: run, run)

    return jax.lax.fori_loop(0, -(-num_steps // size), next_block, run)


def _outcomes_of(progress: _Progress, first: PyTreeDict) -> EpisodeOutcomes:
    steps = progress.step_record and progress.step_record.by_episode()
    outcomes = progress.outcomes.replace(first=first, steps=steps).with_faults()
    if progress.recorded is None:
        return outcomes
    transitions = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), progress.recorded).unpack()
    return outcomes.replace(transitions=transitions)


def _no_outcomes(env_state: EnvState, env_fields: Sequence[str], observe: bool, watch: bool) -> EpisodeOutcomes:
    rows = env_state.done.shape
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), info_entries(env_state.info, env_fields))
    return EpisodeOutcomes(
        returns=jnp.zeros(rows, jnp.float32),
        lengths=jnp.zeros(rows, jnp.int32),
        totals=zeros,
        last=zeros,
        observed=jax.vmap(init_statistics)(env_state.obs) if observe else None,
        faults=jnp.full(rows, NO_FAULT, jnp.int32) if watch else None,
    )


def _zeros_for(row: Callable[[], Tree], num_steps: int) -> Tree:
    """Return zeros for ``num_steps`` rows shaped like ``row()``, ``[T, ...]``, without computing ``row()``."""
    return jax.tree.map(lambda x: jnp.zeros((num_steps, *x.shape), x.dtype), jax.eval_shape(row))


def _with_row(recorded: Packed[SampleBatch] | None, step: jax.Array, row: SampleBatch) -> Packed[SampleBatch] | None:
    return recorded and jax.tree.map(lambda rows, x: rows.at[step].set(x), recorded, pack(row))


def transition_rows(outcomes: EpisodeOutcomes) -> tuple[SampleBatch, jax.Array]:
    """Return recorded transitions as rows of a replay ring of one environment, ordered by episode, then by step.

    Args:
        outcomes: outcomes with ``transitions`` (otherwise ``ValueError``); episodes may have several axes.

    Returns:
        The transitions ``[M, 1, ...]``, M = number of episodes x T, and the ``mask`` for the ring's ``add``, bool
        ``[M]``: True for steps within the length of an episode in which all numbers are finite.
    """
    transitions, lengths = outcomes.transitions, outcomes.lengths
    if transitions is None:
        raise ValueError("transitions of these episodes were not recorded: pass record=... to play_episodes.")
    num_steps = transitions.dones.shape[lengths.ndim]
    is_step = jnp.arange(num_steps) < lengths[..., None]
    numbers = (transitions.obs, transitions.actions, transitions.rewards, transitions.next_obs)
    # Excludes entire episodes, not single steps, because adjacent rows are treated as one episode.
    is_whole = (finite_rows(numbers, is_step.ndim) | ~is_step).all(axis=-1, keepdims=True)
    rows = jax.tree.map(lambda x: x.reshape(-1, 1, *x.shape[lengths.ndim + 1 :]), transitions)
    return rows, (is_step & is_whole).reshape(-1)


def episode_keys(key: Key, episode_ids: jax.Array) -> tuple[Key, Key]:
    """Return the keys of the resets ``[B]`` and of the actions ``[B]`` of the episodes with these indices."""
    fold_rows = jax.vmap(jax.random.fold_in, (None, 0))
    reset_key, action_key = jax.random.split(key)
    return fold_rows(reset_key, episode_ids), fold_rows(action_key, episode_ids)


def info_entries(info: PyTreeDict, names: Sequence[str]) -> PyTreeDict:
    """Return entries of the ``info`` of B environments by name, float32 ``[B, ...]`` each.

    A dot separates levels (``metrics.x_position``). A number at the end selects a component of a vector:
    ``next_obs.0`` is the first component of the observation after the step.

    Raises:
        ValueError: an entry or component does not exist; the message suggests the closest entry.
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
            f"the environment's info has no entry {name!r}.{did_you_mean(name, entries)} Available: "
            f"{', '.join(sorted(entries))}."
        )
    values = entries[entry]
    if values.ndim != 2 or int(component) >= values.shape[1]:
        valid = f"choose {entry}.0 to {entry}.{values.shape[1] - 1}" if values.ndim == 2 else "choose a vector"
        raise ValueError(f"{name!r} is not a component of {entry}, which has shape {list(values.shape[1:])}: {valid}.")
    return values[:, int(component)]
