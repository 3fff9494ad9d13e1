"""Base class of all algorithms, with ``init``, ``step``, ``evaluate`` and ``learn``."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import jax
import jax.numpy as jnp

from evorl.actors.host_loop import HOST_LOOP
from evorl.agent import Agent
from evorl.assembly import build_settings, training_mode, workflow_fields
from evorl.config.gate import distrusting
from evorl.config.names import load_all
from evorl.config.synonyms import refuse_arguments
from evorl.config.values import field_types, positive
from evorl.envs import AutoresetMode
from evorl.envs.vector import VectorEnv
from evorl.evaluators import Evaluator
from evorl.evaluators.episodes import longest_episode
from evorl.execution import programs as programs
from evorl.execution.collector import PROGRAM
from evorl.execution.host_errors import translate_host_errors
from evorl.execution.plan import PlanRules
from evorl.execution.session import Checkpointer, RunSession
from evorl.execution.trainable import Capabilities, Collector, Execution
from evorl.execution.training_loop import run_learning
from evorl.fields import Within
from evorl.metrics import EpisodeStatistics, WideCounter, episode_statistics
from evorl.ops import collectives
from evorl.ops.random import seed_or_key
from evorl.runs.recorder import Chart, Recorder
from evorl.runs.spec import RunSpec
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict, PyTreeNode, State, pytree_field

S = TypeVar("S", bound=State)


class Workflow(PyTreeNode, Generic[S]):
    """A training procedure, generic in the class S of its state. Subclasses define the abstract methods.

    A step calls ``collect``, then ``update``. ``init``, ``step`` and ``evaluate`` are compiled, and compose with a
    user's ``jit``, ``vmap`` or ``scan``. Most floats are pytree leaves, so a new learning rate needs no recompilation.

    Attributes:
        env: vectorized training environments.
        eval_env: vectorized evaluation environments, which ignore training-only options such as ``reward_scale``.
        agent: agent, which selects actions and defines the losses.
        discount: discount factor of the return that is maximized.
        total_timesteps: environment steps of the whole training run per seed, over all environments and devices.
        log_interval: environment steps between two rows of metrics; 0 writes rows only at evaluations and at the end.
        eval_interval: environment steps between evaluations; 0 disables them.
        checkpoint_interval: environment steps between checkpoints; 0 saves only the best and the last state.
        eval_episodes: number of complete episodes per evaluation.
        env_chunk: maximum number of environments stepped at a time, see ``evorl.rollout.rollout``; ``None`` for all.
        execution: seeds, devices, and the collector if environments are stepped outside this process.
        keeping: ``EvaluationRecords``: settings of data that evaluations store besides metrics; ``None`` stores none.

    Settings:
        workflow: dotted path of the workflow's class.
        num_envs: number of parallel environments.
        autoreset_mode: first state of later episodes: a new random state (normal), or that of the first episode (fast).
    """

    env: VectorEnv = pytree_field(static=True)
    eval_env: VectorEnv = pytree_field(static=True, setting=False)
    agent: Agent
    discount: Annotated[float, Within("[0, 1]")] = 0.99
    # 2^53: a float cannot represent every larger integer
    total_timesteps: Annotated[float, Within("(0, 9007199254740992]")] = 1e6
    log_interval: Annotated[float, Within("[0, inf)")] = 5000.0
    eval_interval: Annotated[float, Within("[0, inf)")] = 20_000.0
    checkpoint_interval: Annotated[float, Within("[0, inf)")] = 100_000.0
    eval_episodes: int = 20
    env_chunk: int | None = None
    execution: Execution = pytree_field(static=True, setting=False, default=Execution())
    keeping: Any = pytree_field(static=True, setting=False, default=None)

    plan_rules: ClassVar[PlanRules] = PlanRules()  # decide if several devices are worthwhile
    # Number of environments if the config does not set ``num_envs``.
    default_num_envs: ClassVar[int] = 1
    # Settings of base classes that this workflow does not have.
    foreign_keys: ClassVar[tuple[str, ...]] = ()
    # Entries of the state that ``evaluation`` reads, and that must be loaded for it.
    evaluation_entries: ClassVar[tuple[str, ...]] = ("agent_state", "eval_key", "iterations")
    # Metrics that may be NaN because they have no value yet; in other metrics NaN means that training diverged.
    optional_metrics: ClassVar[tuple[str, ...]] = ()
    # Metrics of the state, such as the best fitness so far: a row contains their last value instead of their mean. A
    # name includes all metrics below it: ``best`` includes ``best/return``.
    latest_metrics: ClassVar[tuple[str, ...]] = ()
    rows_stand_alone: ClassVar[bool] = False  # True if the other seeds continue when one seed diverges

    @classmethod
    def build_from_config(cls, config: Mapping[str, Any], **others: Any) -> Self:
        """Build the workflow, its environments and its agent from a (Hydra or plain) mapping.

        Raises:
            ValueError: a key is unknown (the message suggests the closest valid key), or a value is invalid.
            TypeError: a keyword argument was passed; the message has advice on arguments of other libraries.
        """
        if others:
            refuse_arguments("build_from_config", others)
        with distrusting(config):
            return cls._from_spec(build_settings(config))

    @classmethod
    def _from_spec(cls, spec: RunSpec) -> Self:
        workflow = cls(**workflow_fields(cls, spec))
        workflow.collector.check(workflow)
        return workflow

    @classmethod
    def training_rows(cls, fields: Mapping[str, Any], num_envs: Any, autoreset_mode: Any) -> tuple[int, AutoresetMode]:
        """Return number and autoreset mode of training environments; ``fields`` are the fields that the config sets."""
        return positive(num_envs, "num_envs"), training_mode(autoreset_mode)

    @classmethod
    def make_agent(cls, config: Mapping[str, Any], env: VectorEnv) -> Agent:
        """Build the agent from ``config``, the section ``agent``; the annotation of the field ``agent`` is its class.

        Raises:
            ValueError: the agent does not support the action space of ``env``, or a setting is invalid.
        """
        return field_types(cls)["agent"].from_config(config, env)

    @property
    def capabilities(self) -> Capabilities:
        """Kinds of data that the workflow can learn from, which determine the collectors that it supports."""
        return Capabilities()

    @property
    @abstractmethod
    def timesteps_per_iteration(self) -> int:
        """Environment steps of one seed per iteration, over all environments and devices; 0 if the number varies.

        If it varies, the workflow reports the metric ``timesteps``, sums it in the counter ``timesteps`` of its state,
        and has a property ``max_timesteps_per_iteration``, an upper bound. Rows, evaluations and checkpoints are then
        due after the first iteration that reaches a multiple of their interval; training ends at ``total_timesteps``.
        """

    def starts(self, key: Key) -> Any:
        """Return the argument of ``setup`` for every seed: keys ``[S]``, or a single key without a seed axis."""
        return programs.seed_keys(self.execution, key)

    @abstractmethod
    def setup(self, key: Key) -> S:
        """Return the initial state of one seed, which contains everything that a step changes. A pure function."""

    @abstractmethod
    def collect(self, state: S) -> tuple[Any, S]:
        """Act in the environments; return experience, a ``SampleBatch`` or ``EpisodeOutcomes``, and the new state."""

    @abstractmethod
    def update(self, state: S, batch: Any) -> tuple[PyTreeDict, S]:
        """Learn from the experience ``batch``; return metrics (scalars by name) and the new state."""

    def pure_step(self, state: S, batch: Any = None) -> tuple[PyTreeDict, S]:
        """Run one iteration of one seed: ``collect`` unless ``batch`` is passed, then ``update``. A pure function."""
        if batch is None:
            batch, state = self.collect(state)
        metrics, state = self.update(state, batch)
        return metrics, state.replace(iterations=state.iterations.add(1))

    def progress(self, state: S) -> jax.Array:
        """Return the completed fraction of training, in [0, 1], for schedules."""
        return jnp.minimum(state.iterations.as_float() * self.timesteps_per_iteration / self.total_timesteps, 1.0)

    def evaluation(self, state: S) -> PyTreeDict:
        """Return the metrics of an evaluation of one seed. Its random keys do not affect training. A pure function."""
        evaluator = Evaluator(
            env=self.eval_env,
            agent_fn=self.agent.evaluate_actions,
            max_episode_steps=longest_episode(self.eval_env),
            env_chunk=self.env_chunk,
            **(self.keeping.for_evaluator() if self.keeping else {}),
        )
        key = jax.random.fold_in(state.eval_key, state.iterations.low)
        return evaluator.evaluate(state.agent_state, key, self.eval_episodes).summary()

    def charts(self, state: S) -> Mapping[str, Chart]:
        """Return charts by name, made on the host from the state at the end of a run; by default an empty mapping."""
        return {}

    def init(self, key: Key | int = 0) -> S:
        """Return the initial state, computed by one compiled program.

        Args:
            key: seed s (an int), a key, or one key per seed. With s, seed i of several seeds equals a run of ``s + i``.

        Raises:
            ValueError: the state does not fit in memory; the message names the setting or array that is too large.
        """
        return call_with_simulators(self, programs.initial_state, self, seed_or_key(key))

    @property
    def collector(self) -> Collector:
        """Object that steps the environments: ``execution.collector`` if set, a host loop, or the compiled program."""
        if self.execution.collector is not None:
            return self.execution.collector
        if getattr(self.env, "host", None) == "loop" and self.capabilities.rollouts:
            return HOST_LOOP
        return PROGRAM

    def step(self, state: S) -> tuple[PyTreeDict, S]:
        """Run one iteration of every seed; return metrics, ``[S]`` with a seed axis, and the next state."""
        return call_with_simulators(self, programs.step_program, self, state)

    def evaluate(self, state: S) -> PyTreeDict:
        """Return statistics of ``eval_episodes`` complete episodes of every seed. The state is not donated."""
        return call_with_simulators(self, self.collector.evaluate, self, state)

    def learn(
        self,
        state: S | None = None,
        *,
        key: Key | int = 0,
        recorder: Recorder | None = None,
        checkpointer: Checkpointer | None = None,
        progress: Mapping[str, Any] | None = None,
        should_stop: Callable[[], bool] | None = None,
        session: RunSession | None = None,
        eval_at_start: bool = False,
    ) -> S:
        """Train until ``total_timesteps``, with recording and checkpoints, and return the last state.

        Args:
            state: state to continue from (donated); its iterations count towards the total. ``None`` for ``init(key)``.
            key: seed or key of the initial state; ignored if ``state`` is not ``None``.
            recorder: receives the metrics; ``None`` records nothing.
            checkpointer: saves states; ``None`` saves nothing.
            progress: progress stored in the checkpoint of ``state``, to resume its run.
            should_stop: called between chunks of iterations; True ends the training early, after saving.
            session: ``RunSession`` to use instead of recorder, checkpointer, progress and should_stop.
            eval_at_start: also evaluate before the first step, if evaluations are enabled.

        Raises:
            TrainingDiverged: a metric, a parameter or an environment's output became NaN or infinite.
            HostEnvError: a simulator on the host failed.
            ValueError: memory is too small, an iteration is far longer than training, or a process would be idle.
        """
        session = session or RunSession(recorder, checkpointer, progress, should_stop)
        return call_with_simulators(self, run_learning, self, session, state, key, eval_at_start)

    def close(self) -> None:
        """Release the resources of environments and stop the actors. JAX environments have no resources."""
        self.collector.close()
        self.env.close()
        self.eval_env.close()
        for nested in vars(self).values():
            if isinstance(nested, Workflow):
                nested.close()  # a learner has its own environments


def call_with_simulators(workflow: Workflow, fn: Callable[..., Any], *args: Any) -> Any:
    """Return ``fn(*args)``; with simulators on the host, wait for it, so that their ``HostEnvError`` is raised here."""
    try:
        if not (workflow.env.steps_on_host or workflow.eval_env.steps_on_host):
            return fn(*args)
        with translate_host_errors():
            return jax.block_until_ready(fn(*args))
    except (TypeError, ValueError) as error:
        _refuse_64_bits(error)
        raise


def _refuse_64_bits(error: Exception) -> None:
    """Raise ``ValueError`` with advice if ``error`` is about float64 arrays, which JAX creates in its 64-bit mode."""
    if jax.config.read("jax_enable_x64") and "float64" in str(error):
        raise ValueError(
            "jax_enable_x64 is on, but this algorithm supports only 32-bit numbers: unset JAX_ENABLE_X64, or call "
            "jax.config.update('jax_enable_x64', False) before the workflow is built."
        ) from error


def learning_algorithms(*kinds: type[Workflow]) -> str:
    """Return the names, separated by commas, of evorl's learning algorithms whose workflows subclass ``kinds``."""
    classes = [(name, cls) for name in load_all("evorl.algorithms") for cls in vars(sys.modules[name]).values()]
    shipped = [cls for name, cls in classes if isinstance(cls, type) and cls.__module__ == name]
    learning = [cls for cls in shipped if issubclass(cls, kinds) and field_types(cls)["agent"].learns]
    return ", ".join(sorted({cls.__module__.rpartition(".")[2] for cls in learning}))


def ended_episodes(trajectory: SampleBatch) -> EpisodeStatistics:
    """Return the statistics of the episodes that ended in a trajectory ``[T, B, ...]``, over all devices."""
    info = trajectory.extras.env_extras
    rows = (trajectory.dones, info.episode_return, info.episode_length)
    return episode_statistics(*collectives.gather_rows(rows, axis=1))


def split_setup_keys(key: Key, state_class: type[S]) -> tuple[Key, Key, S]:
    """Return a key for the agent, a key for the environments, and a state with the entries common to all workflows.

    The common entries are the keys ``key`` (training) and ``eval_key`` (evaluation), and the counter ``iterations``.
    """
    agent_key, env_key, training_key, eval_key = jax.random.split(key, 4)
    return agent_key, env_key, state_class(key=training_key, eval_key=eval_key, iterations=WideCounter.create())
