"""The loop around an agent of any framework: collect, store, update, evaluate, record."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from evorl.collecting.collector import Collector
from evorl.collecting.host_agent import HostAgent
from evorl.collecting.host_evaluation import play_on_host
from evorl.collecting.replay_memory import ReplayMemory
from evorl.collecting.transitions import Collected
from evorl.collecting.vector_collector import VectorCollector
from evorl.config.names import no_such
from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.execution.intervals import EveryIterations
from evorl.execution.rows import RunningMeans
from evorl.execution.session import Intervals, Pace, RunSession, SessionRules
from evorl.metrics import EpisodeStatistics
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.runs.recording import Recorder, RunPlan
from evorl.types import PyTreeDict, State

WARM_UP_BY = ("agent", "random")
_REMEDY = "Try a smaller learning rate, or clip gradients."


class Runner:
    """Trains an agent of any framework in one environment, or in simulators that are stepped together.

    One iteration is a rollout of ``rollout_length`` steps and, if there is a batch, one call of ``agent.update``.
    ``step`` gives the batch for a loop of one's own; ``run`` is the whole loop. ``off_policy`` and ``on_policy`` make
    runners.

    Args:
        env: of Gymnasium's interface, or a ``HostVectorEnv``.
        agent: see ``HostAgent``.
        rollout_length: steps, of each row, between two updates.
        replay: where transitions are kept, and batches are drawn from; without it a batch is the rollout.
        batch_size: transitions in a batch that is drawn.
        num_batches: how many are drawn for an update, which is then given a list; ``None`` for one by itself.
        warm_up: transitions to be stored before the first rollout.
        warm_up_by: the ``agent`` acts then, or it is at ``random``.
        burn_in: steps at random before all others, of which nothing is stored: for statistics that an environment
            gathers.
        eval_env: where evaluations are played; by default a copy of ``env``.
        num_steps: steps in a transition, see ``Collector``.
        done_means: see ``Collector``.
        info_names: see ``Collector``.
        transform: changes each batch before it is given to the agent.
        keep_episodes: of so many episodes of each evaluation the recorder is given every step, see ``EpisodeRecorder``.
        recorder: is told of the course of ``run``; closing it is up to its owner.
        seed: of environments, random actions and draws.

    Raises:
        ValueError: a value cannot work.
        TypeError: the environment cannot be collected from in this way.
    """

    def __init__(
        self,
        env: Any,
        agent: Any,
        *,
        rollout_length: int,
        replay: ReplayMemory | None = None,
        batch_size: int = 32,
        num_batches: int | None = None,
        warm_up: int = 0,
        warm_up_by: str = "agent",
        burn_in: int = 0,
        eval_env: Any = None,
        num_steps: int = 1,
        done_means: str = "either",
        info_names: Sequence[str] = (),
        transform: Callable[[Any], Any] | None = None,
        keep_episodes: int = 0,
        recorder: Recorder | None = None,
        seed: int = 0,
    ) -> None:
        _check_numbers(rollout_length=rollout_length, batch_size=batch_size)
        if warm_up_by not in WARM_UP_BY:
            raise ValueError(no_such("value of warm_up_by", warm_up_by, WARM_UP_BY))
        if warm_up and replay is None:
            raise ValueError(f"warm_up={warm_up} fills a replay memory, and there is none: leave it 0, or give one.")
        seeds = np.random.SeedSequence(seed).generate_state(3).tolist()
        make = VectorCollector if isinstance(env, HostVectorEnv) else Collector
        self.collector = make(env, num_steps=num_steps, done_means=done_means, info_names=info_names, seed=seeds[0])
        self.agent = agent
        self.replay = replay
        self._eval_env, self._eval_seed, self._keep_episodes = eval_env, seeds[1], keep_episodes
        self._num_evaluations = 0
        rows = env.num_envs if isinstance(env, HostVectorEnv) else None
        self._random_agent = HostAgent(env.action_space, seeds[2], rows)
        self._rollout_length, self._batch_size, self._num_batches = rollout_length, batch_size, num_batches
        self._warm_up, self._warm_up_by, self._burn_in = warm_up, warm_up_by, burn_in
        self._transform = transform
        self._episode_means = RunningMeans({})
        self._session = RunSession(recorder)

    @classmethod
    def off_policy(
        cls,
        env: Any,
        agent: Any,
        *,
        rollout_length: int = 1,
        batch_size: int = 32,
        capacity: int = 100_000,
        warm_up: int = 10_000,
        replay: ReplayMemory | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Self:
        """A runner whose batches are drawn from a replay memory: ``replay``, or a uniform one of ``capacity``."""
        if replay is None:
            rows = env.num_envs if isinstance(env, HostVectorEnv) else 1
            replay = ReplayMemory(UniformReplayBuffer(capacity=capacity, num_envs=rows), seed=seed)
        options |= {"rollout_length": rollout_length, "batch_size": batch_size, "warm_up": warm_up, "seed": seed}
        return cls(env, agent, replay=replay, **options)

    @classmethod
    def on_policy(cls, env: Any, agent: Any, *, rollout_length: int, **options: Any) -> Self:
        """A runner whose batches are the rollouts: leaves ``[N, ...]``, or ``[T, B, ...]`` of simulators."""
        return cls(env, agent, rollout_length=rollout_length, **options)

    @property
    def timesteps(self) -> int:
        """Steps that were taken so far, over all rows."""
        return self.collector.timesteps

    def prepare(self) -> None:
        """Burn in and warm up, if that is still to be done; the first ``step`` does it otherwise."""
        if self._burn_in:
            self.collector.collect(self._random_agent, -(-self._burn_in // self.collector.num_envs))
            self.collector.restart()
            self._burn_in = 0
        if self._warm_up and self.replay is not None:
            agent = self.agent if self._warm_up_by == "agent" else self._random_agent
            stored = 0
            while stored < self._warm_up:
                length = -(-(self._warm_up - stored) // self.collector.num_envs)
                stored += self._store(self._collect(agent, min(length, 1000)))
            if agent is not self.agent:
                self.collector.restart()  # what the agent remembers of an episode, it remembers from its start
            self._warm_up = 0

    def step(self) -> Any:
        """One rollout, stored. Returns a batch: drawn, or without replay the rollout; ``None`` if there is none yet."""
        self.prepare()
        collected = self._collect(self.agent, self._rollout_length)
        if self.replay is None:
            batch = collected.transitions
        else:
            self._store(collected)
            batch = self.replay.sample(self._batch_size, self._num_batches)
        return batch if batch is None or self._transform is None else self._transform(batch)

    def update(self, batch: Any) -> Mapping[str, Any]:
        """Let the agent learn from a batch, and change the replay memory as it says. Returns its metrics.

        Raises:
            TrainingDiverged: a metric is not finite.
        """
        told = self.agent.update(batch)
        metrics, changes = told if isinstance(told, tuple) else (told, None)
        metrics = {name: float(value) for name, value in (metrics or {}).items()}
        rows = PyTreeDict({name: np.array([value]) for name, value in metrics.items()})
        self._session.refuse_divergence(rows, self._session.iterations + 1)
        if changes:
            if self.replay is None:
                raise ValueError("the agent's update changes stored transitions, and there is no replay memory.")
            self.replay.update(changes)
        return metrics

    def evaluate(self, num_episodes: int) -> PyTreeDict:
        """``episode_return`` and more of so many episodes, see ``EvaluationMetrics.summary``. Training does not notice.

        Raises:
            ValueError: there is no environment for it.
        """
        if self._eval_env is None:
            self._eval_env = _copy_of(self.collector.env)
        seed = int(np.random.SeedSequence([self._eval_seed, self._num_evaluations]).generate_state(1)[0])
        self._num_evaluations += 1
        kept = min(self._keep_episodes, num_episodes)
        return jax.device_get(play_on_host(self._eval_env, self.agent, num_episodes, seed, kept).summary())

    def run(
        self, num_rollouts: int, *, eval_every: int = 0, eval_episodes: int = 10, log_every: int = 0
    ) -> PyTreeDict | None:
        """Train for so many rollouts.

        Args:
            num_rollouts: how many.
            eval_every: rollouts between two evaluations, of which one is at the start and one at the end; 0 for none.
            eval_episodes: episodes in each.
            log_every: rollouts between two rows of metrics; 0 for those with evaluations only.

        Returns:
            The last evaluation, see ``evaluate``; ``None`` without one.
        """
        _check_numbers(num_rollouts=num_rollouts, eval_episodes=eval_episodes)
        self.prepare()
        session = self._session
        steps = self._rollout_length * self.collector.num_envs
        plan = RunPlan(
            name=type(self.agent).__name__,
            total_timesteps=self.timesteps + num_rollouts * steps,
            first_timesteps=self.timesteps,
            first_iterations=session.iterations,
            num_seeds=1,
            num_devices=1,
        )
        intervals = Intervals(
            *(EveryIterations(number, session.iterations) if number else None for number in (log_every, eval_every))
        )
        rules = SessionRules(
            intervals, eval_episodes, pace=Pace(self.timesteps), columns=self._episode_means.take, remedy=_REMEDY
        )
        session.begin(plan, rules, self.timesteps)
        evaluation: PyTreeDict | None = None

        def evaluate() -> PyTreeDict:
            nonlocal evaluation
            evaluation = self.evaluate(eval_episodes)
            return PyTreeDict(evaluation)

        if eval_every:
            session.write_row(session.evaluate(evaluate))
            session.report_progress()
        for number in range(1, num_rollouts + 1):
            batch = self.step()
            metrics = {} if batch is None else self.update(batch)
            steps = self.timesteps - session.counted
            session.advance(1, steps, steps, PyTreeDict({k: np.array([v]) for k, v in metrics.items()}))
            session.complete_iteration(evaluate, State, is_last=number == num_rollouts)
        if evaluation is not None:
            evaluation.pop("episodes", None)
        return evaluation

    def _collect(self, agent: Any, length: int) -> Collected:
        collected = self.collector.collect(agent, length)
        if collected.num_episodes:
            self._episode_means.add(PyTreeDict(episodes=_statistics(collected)))
        return collected

    def _store(self, collected: Collected) -> int:
        if collected.transitions is None or self.replay is None:
            return 0
        return self.replay.store(collected.transitions).size


def _statistics(collected: Collected) -> EpisodeStatistics:
    """Of the episodes that ended, as those of one iteration, ``[1]``."""
    returns, lengths = collected.episode_returns, collected.episode_lengths
    numbers = (len(returns), returns.sum(), lengths.sum(), returns.min(), returns.max())
    # Arrays of NumPy, for which the class has the same arithmetic: nothing goes to a device for a row of metrics.
    return EpisodeStatistics(*(np.array([number], np.float64) for number in numbers))  # pyright: ignore[reportArgumentType]


def _check_numbers(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")


def _copy_of(env: Any) -> Any:
    hint = "give the runner an eval_env of its own."
    if isinstance(env, HostVectorEnv):
        raise ValueError(f"simulators cannot be copied for an evaluation: {hint}")
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise ValueError(f"this environment cannot be copied for an evaluation ({error}): {hint}") from error
