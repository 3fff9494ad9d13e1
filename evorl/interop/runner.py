"""Training loop for an agent of any framework: collect, store, update, evaluate, record."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from evorl.config.names import no_such
from evorl.config.values import LONGEST_AXIS, checked_value, positive, whole_number
from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.execution.intervals import EveryIterations
from evorl.execution.rows import RunningMeans
from evorl.execution.session import Intervals, Pace, RunSession, SessionRules
from evorl.interop.agent_calls import random_agent_for
from evorl.interop.collector import Collector
from evorl.interop.host_evaluation import play_on_host
from evorl.interop.replay_memory import ReplayMemory
from evorl.interop.transitions import Collected
from evorl.interop.vector_collector import VectorCollector
from evorl.metrics import EpisodeStatistics
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.runs.recorder import Recorder, RunPlan
from evorl.types import PyTreeDict, State

WARM_UP_BY = ("agent", "random")
_ADVICE = "Try a smaller learning rate, or clip gradients."


class Runner:
    """Trains an agent of any framework in one environment, or in vectorized simulators.

    One iteration is a rollout of ``rollout_length`` steps and, if there is a batch, one call of ``agent.update``.
    ``run`` is the whole loop; a custom loop calls ``step`` for a batch, then ``update``. ``off_policy`` and
    ``on_policy`` create runners with suitable defaults.

    Args:
        env: environment with Gymnasium's interface, or a ``HostVectorEnv``.
        agent: see ``HostAgent``.
        rollout_length: steps of each environment between two updates.
        replay: replay memory that stores transitions and samples batches; ``None`` uses the rollouts as batches.
        batch_size: number of transitions in a sampled batch.
        num_batches: number of batches sampled per update, passed as a list; ``None`` for a single batch without a list.
        warm_up: number of transitions to store before the first rollout.
        warm_up_by: source of actions during the warm-up: ``agent`` or ``random``. Random actions have no extras: if
            ``agent.step`` returns extras, ``replay`` needs them as ``extra_columns``.
        burn_in: number of random steps before the warm-up that are not stored, for example to initialize an
            environment's running statistics.
        eval_env: environment for evaluations; by default a new copy of ``env`` for each, or the last copy if ``env``
            cannot be copied any more, as with an open window. Required for a ``HostVectorEnv``.
        num_steps: number of steps in a transition, see ``Collector``.
        done_means: meaning of ``dones``, see ``Collector``.
        info_names: entries of the environment's ``info`` to store.
        transform: function applied to each batch before the agent gets it.
        keep_episodes: number of episodes per evaluation whose steps the recorder gets, see ``EpisodeRecorder``.
        recorder: receives the progress of ``run``; the runner does not close it.
        seed: seed of environments, evaluations and random actions; ``replay`` has its own seed.

    Raises:
        ValueError: an argument is invalid.
        TypeError: ``num_steps`` is not 1, and ``env`` is a ``HostVectorEnv``.
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
        if warm_up_by not in WARM_UP_BY:
            raise ValueError(no_such("value of warm_up_by", warm_up_by, WARM_UP_BY))
        self._warm_up, self._burn_in, self._keep_episodes = _counts(
            warm_up=warm_up, burn_in=burn_in, keep_episodes=keep_episodes
        )
        if warm_up and replay is None:
            raise ValueError(f"warm_up={warm_up} requires a replay memory: set warm_up=0, or pass replay.")
        seeds = np.random.SeedSequence(seed).generate_state(3).tolist()
        make = VectorCollector if isinstance(env, HostVectorEnv) else Collector
        self.collector = make(env, num_steps=num_steps, done_means=done_means, info_names=info_names, seed=seeds[0])
        self.agent = agent
        self.replay = replay
        self._eval_env, self._eval_seed = eval_env, seeds[1]
        self._eval_copy: Any = None
        self._num_evaluations = 0
        rows = env.num_envs if isinstance(env, HostVectorEnv) else None
        self._random_agent = random_agent_for(env, agent, seeds[2], rows)
        self._rollout_length = positive(rollout_length, "rollout_length")
        self._batch_size = positive(batch_size, "batch_size")
        self._num_batches = checked_value(num_batches, int | None, "num_batches")
        self._warm_up_by = warm_up_by
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
        """Create a runner that samples ``replay``, by default a uniform replay memory of ``capacity`` transitions."""
        if replay is None:
            rows = env.num_envs if isinstance(env, HostVectorEnv) else 1
            replay = ReplayMemory(UniformReplayBuffer(capacity=capacity, num_envs=rows), seed=seed)
        options |= {"rollout_length": rollout_length, "batch_size": batch_size, "warm_up": warm_up, "seed": seed}
        return cls(env, agent, replay=replay, **options)

    @classmethod
    def on_policy(cls, env: Any, agent: Any, *, rollout_length: int, **options: Any) -> Self:
        """Create a runner whose batches are the rollouts: leaves ``[N, ...]``, or ``[T, B, ...]`` with simulators."""
        return cls(env, agent, rollout_length=rollout_length, **options)

    @property
    def timesteps(self) -> int:
        """Number of steps taken so far, over all environments."""
        return self.collector.timesteps

    def prepare(self) -> None:
        """Run burn-in and warm-up, unless they have already run; ``step`` and ``run`` call this method first."""
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
                self.collector.restart()  # an agent with memory must act from the start of an episode
            self._warm_up = 0

    def step(self) -> Any:
        """Collect and store a rollout; return a sample of the replay memory or, without one, the rollout.

        The result is transformed by ``transform``, or ``None`` if nothing can be sampled or no transition is complete.
        """
        self.prepare()
        collected = self._collect(self.agent, self._rollout_length)
        if self.replay is None:
            batch = collected.transitions
        else:
            self._store(collected)
            batch = self.replay.sample(self._batch_size, self._num_batches)
        return batch if batch is None or self._transform is None else self._transform(batch)

    def update(self, batch: Any) -> Mapping[str, Any]:
        """Update the agent with a batch, apply the changes it returns to the replay memory, and return the metrics.

        Raises:
            TrainingDiverged: a metric is not finite.
            ValueError: the agent's changes are invalid, see ``ReplayMemory.update``; or the runner has no ``replay``.
        """
        result = self.agent.update(batch)
        metrics, changes = result if isinstance(result, tuple) else (result, None)
        metrics = {name: float(value) for name, value in (metrics or {}).items()}
        rows = PyTreeDict({name: np.array([value]) for name, value in metrics.items()})
        self._session.refuse_divergence(rows, self._session.iterations + 1)
        if changes:
            if self.replay is None:
                raise ValueError(
                    "the agent's update returned changes of stored transitions, but the runner has no replay memory: "
                    "pass replay, or return metrics only."
                )
            self.replay.update(changes)
        return metrics

    def evaluate(self, num_episodes: int) -> PyTreeDict:
        """Evaluate the agent on ``num_episodes`` episodes without affecting training.

        Returns:
            ``episode_return`` and other metrics, see ``EvaluationMetrics.summary``.

        Raises:
            ValueError: ``eval_env`` is not set, and the environment cannot be copied.
        """
        env = self._env_for_evaluation() if self._eval_env is None else self._eval_env
        seed = int(np.random.SeedSequence([self._eval_seed, self._num_evaluations]).generate_state(1)[0])
        self._num_evaluations += 1
        keep_steps = min(self._keep_episodes, num_episodes)
        return jax.device_get(play_on_host(env, self.agent, num_episodes, seed, keep_steps).summary())

    def _env_for_evaluation(self) -> Any:
        try:
            self._eval_copy = _copy_of(self.collector.env)
        except ValueError:
            if self._eval_copy is None:
                raise
        return self._eval_copy

    def run(
        self, num_rollouts: int, *, eval_every: int = 0, eval_episodes: int = 10, log_every: int = 0
    ) -> PyTreeDict | None:
        """Train for ``num_rollouts`` rollouts; raise ``TrainingDiverged`` if a metric is not finite.

        Args:
            num_rollouts: number of rollouts, at least 1.
            eval_every: rollouts between two evaluations, with one at the start and one at the end; 0 disables them.
            eval_episodes: number of episodes per evaluation, at least 1.
            log_every: rollouts between two rows of metrics; 0 writes only rows with evaluations.

        Returns:
            The last evaluation, see ``evaluate``; ``None`` if evaluations are disabled.
        """
        num_rollouts, eval_episodes = positive(num_rollouts, "num_rollouts"), positive(eval_episodes, "eval_episodes")
        log_every, eval_every = _counts(log_every=log_every, eval_every=eval_every)
        self.prepare()
        session = self._session
        plan = RunPlan(
            name=type(self.agent).__name__,
            total_timesteps=self.timesteps + num_rollouts * self._rollout_length * self.collector.num_envs,
            first_timesteps=self.timesteps,
            first_iterations=session.iterations,
            num_seeds=1,
            num_devices=1,
        )
        intervals = Intervals(
            *(EveryIterations(number, session.iterations) if number else None for number in (log_every, eval_every))
        )
        rules = SessionRules(
            intervals, eval_episodes, pace=Pace(self.timesteps), columns=self._episode_means.take, advice=_ADVICE
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
    """Return the statistics of the episodes that ended, in the form for one iteration: arrays ``[1]``."""
    returns, lengths = collected.episode_returns, collected.episode_lengths
    numbers = (len(returns), returns.sum(), lengths.sum(), returns.min(), returns.max())
    # NumPy arrays, which the class supports, avoid transfers to a device.
    return EpisodeStatistics(*(np.array([number], np.float64) for number in numbers))  # pyright: ignore[reportArgumentType]


def _counts(**numbers: Any) -> list[int]:
    """Return numbers as integers; raise ``ValueError`` for a fraction or a negative number."""
    return [whole_number(value, name, 0, LONGEST_AXIS) for name, value in numbers.items()]


def _copy_of(env: Any) -> Any:
    hint = "pass a separate eval_env to the runner."
    if isinstance(env, HostVectorEnv):
        raise ValueError(f"simulators cannot be copied for an evaluation: {hint}")
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise ValueError(f"this environment cannot be copied for an evaluation ({error}): {hint}") from error
