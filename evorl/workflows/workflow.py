"""Base class of all algorithms: ``init``, ``step``, ``evaluate``, ``learn``; a step is ``collect``, then ``update``."""

from __future__ import annotations

import contextlib
import operator
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from evorl.agent import Agent
from evorl.config.names import load
from evorl.config.values import field_types, positive
from evorl.envs import AutoresetMode, EnvState
from evorl.envs.vector import VectorEnv
from evorl.evaluators import Evaluator
from evorl.evaluators.episodes import longest_episode
from evorl.execution import programs as programs
from evorl.execution.env_faults import without_env_faults
from evorl.execution.learning import Checkpointer, Recorder, run_learning
from evorl.execution.plan import MIN_BYTES_PER_DEVICE
from evorl.execution.trainable import Execution
from evorl.metrics import EpisodeStatistics, WideCounter, episode_statistics
from evorl.ops import collectives
from evorl.ops.random import seed_or_key
from evorl.runs.recording import Chart
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict, PyTreeNode, State, pytree_field
from evorl.workflows.assembly import read_workflow_config, training_mode

_HOST_LOOP = "evorl.actors.host_loop:iterate_on_host"  # loaded only if environments run outside of JAX
_HOST_ERRORS = "evorl.execution.host_errors:host_errors_in_words"


class Workflow(PyTreeNode):
    """A complete training procedure. Subclasses define set-up, collection and update.

    Called from Python, ``init``, ``step`` and ``evaluate`` are compiled; inside a user's ``jit``, ``vmap`` or ``scan``
    they compose. Numbers are pytree leaves: another learning rate or discount runs the same compiled program.

    Attributes:
        env: training environments.
        eval_env: environments for evaluation; if built from a config, without reward options for training.
        agent: agent, which selects actions and defines the losses.
        discount: discount factor of the return that is maximised.
        total_timesteps: environment steps of the whole training per seed, over all environments and devices.
        log_interval: environment steps between two rows of metrics.
        eval_interval: environment steps between evaluations; 0 disables them.
        checkpoint_interval: environment steps between checkpoints; 0 keeps only the last one.
        eval_episodes: complete episodes per evaluation.
        env_chunk: maximum number of environments that are stepped at a time, see ``evorl.rollout.rollout``.
        execution: seeds and devices.
        actors: processes that collect for the learner, ``evorl.actors.actor_loop.Actors``; ``None`` for none.
        keeping: recording of evaluation episodes, ``evorl.evaluators.keeping.Keeping``; ``None`` for none.

    Settings:
        workflow: class of the workflow.
        num_envs: number of parallel environments.
        autoreset_mode: reset of environments at the end of an episode: normal or fast.
    """

    env: VectorEnv = pytree_field(static=True)
    eval_env: VectorEnv = pytree_field(static=True, setting=False)
    agent: Agent
    discount: float = 0.99
    total_timesteps: float = 1e6
    log_interval: float = 5000.0
    eval_interval: float = 20_000.0
    checkpoint_interval: float = 100_000.0
    eval_episodes: int = 20
    env_chunk: int | None = None
    execution: Execution = pytree_field(static=True, setting=False, default=Execution())
    actors: Any = pytree_field(static=True, setting=False, default=None)
    keeping: Any = pytree_field(static=True, setting=False, default=None)

    ranges: ClassVar[Mapping[str, str]] = {
        "discount": "[0, 1]",
        "total_timesteps": "(0, 9007199254740992]",  # 2^53: beyond, a float cannot represent every integer
        "log_interval": "[0, inf)",
        "eval_interval": "[0, inf)",
        "checkpoint_interval": "[0, inf)",
    }
    # Minimum bytes of environments per device that outweigh the communication between CPU devices.
    min_bytes_per_device: ClassVar[int] = MIN_BYTES_PER_DEVICE
    # True if every device needs the same number of environments.
    needs_even_shares: ClassVar[bool] = True
    # True if updates consist of small operations (small networks and batches).
    has_small_updates: ClassVar[bool] = False
    # Number of environments if the config does not set ``num_envs``.
    default_num_envs: ClassVar[int] = 1
    # Config keys of other workflows that do not apply to this one.
    foreign_keys: ClassVar[tuple[str, ...]] = ()
    # Entries of the state that ``evaluation`` reads, and that must be loaded for it.
    evaluation_entries: ClassVar[tuple[str, ...]] = ("agent_state", "eval_key", "iterations")
    # Metrics that are NaN while they have no value; in other metrics NaN means that the training diverged.
    optional_metrics: ClassVar[tuple[str, ...]] = ()
    rows_stand_alone: ClassVar[bool] = False  # True if the other seeds continue when one seed diverges
    # Entries of the state with one row per environment, and the axis of those rows.
    sharded_axes: ClassVar[Mapping[str, int]] = {"env_state": 0}

    @classmethod
    def build_from_config(cls, config: Mapping[str, Any], **others: Any) -> Self:
        """Build the workflow, its environments and its agent from a (Hydra or plain) mapping.

        Raises:
            ValueError: a key is unknown (the message suggests the closest valid key), or a value is invalid.
            TypeError: there are further arguments, ``others``, which are not supported.
        """
        load("evorl.config.other_words:refuse_arguments")("build_from_config", others)
        return cls._from_config(config)

    @classmethod
    def _from_config(cls, config: Mapping[str, Any]) -> Self:
        workflow = cls(**read_workflow_config(cls, config))
        if workflow.actors is not None:
            workflow.actors.check(workflow)
        return workflow

    @classmethod
    def training_rows(cls, config: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[int, AutoresetMode]:
        """Return the number of training environments and the autoreset mode; ``fields`` were read from ``config``."""
        num_envs = positive(config.get("num_envs", cls.default_num_envs), "num_envs")
        return num_envs, training_mode(config.get("autoreset_mode", AutoresetMode.NORMAL))

    @classmethod
    def make_agent(cls, config: Mapping[str, Any], env: VectorEnv) -> Agent:
        """Build the agent from the ``agent`` part of a config; its class is the annotation of the field ``agent``.

        Raises:
            ValueError: the algorithm cannot act in the action space.
        """
        return field_types(cls)["agent"].from_config(config, env)

    @property
    def corrects_lag(self) -> bool:
        """True if the algorithm can learn from data of a policy that is a few updates old."""
        return False

    @property
    def learns_from_single_steps(self) -> bool:
        """True if rollouts do not have to continue where the previous ones ended."""
        return True

    @property
    @abstractmethod
    def timesteps_per_iteration(self) -> int:
        """Environment steps per step of the workflow and seed, over all devices; 0 if their number varies.

        If it varies, the metric ``timesteps`` reports their number and a counter ``timesteps`` in the state sums them
        up. Logging, evaluations, checkpoints and the end happen at the first step that reaches their environment step.
        """

    @property
    def most_timesteps_per_iteration(self) -> int:
        """Upper bound of the environment steps per iteration."""
        return self.timesteps_per_iteration

    def starts(self, key: Key) -> Any:
        """Return the inputs of ``setup``: one key per seed, ``[S]``, or a single key."""
        return programs.seed_keys(self.execution, key)

    @abstractmethod
    def setup(self, key: Key) -> State:
        """Return the initial state of one seed; pure. It contains everything that a step changes."""

    @abstractmethod
    def collect(self, state: State) -> tuple[Any, State]:
        """Act in the environments; return the experience (a ``SampleBatch``, or results of episodes) and the state."""

    @abstractmethod
    def update(self, state: State, batch: Any) -> tuple[PyTreeDict, State]:
        """Learn from experience, wherever it was collected; return metrics (scalars by name) and the new state."""

    def pure_step(self, state: State) -> tuple[PyTreeDict, State]:
        """Run one iteration of one seed on this device: ``collect``, ``update``, count."""
        batch, state = self.collect(state)
        return self.learn_once(state, batch)

    def learn_once(self, state: State, batch: Any) -> tuple[PyTreeDict, State]:
        """Run the second half of an iteration: ``update``, count."""
        metrics, state = self.update(state, batch)
        return metrics, state.replace(iterations=state.iterations.add(1))

    def progress(self, state: State) -> jax.Array:
        """Return the fraction of the training that is done, in [0, 1], for schedules."""
        return jnp.minimum(state.iterations.as_float() * self.timesteps_per_iteration / self.total_timesteps, 1.0)

    def evaluation(self, state: State) -> PyTreeDict:
        """Evaluate one seed; pure. It has a separate stream of keys, so that it does not affect the training."""
        evaluator = Evaluator(
            env=self.eval_env,
            agent_fn=self.agent.evaluate_actions,
            max_episode_steps=longest_episode(self.eval_env),
            env_chunk=self.env_chunk,
            **(self.keeping.for_evaluator() if self.keeping else {}),
        )
        key = jax.random.fold_in(state.eval_key, state.iterations.low)
        return evaluator.evaluate(state.agent_state, key, self.eval_episodes).summary()

    def charts(self, state: State) -> Mapping[str, Chart]:
        """Return charts of the state at the end of a run, by name; runs on the host."""
        return {}

    def init(self, key: Key | int = 0) -> State:
        """Return the initial state, computed by one compiled program.

        Args:
            key: a seed or a key; with several seeds, seed i equals the single run of ``key + i``. Or one key per seed.

        Raises:
            ValueError: the state does not fit into memory; the message has the largest setting that fits.
        """
        with self._host_errors():
            return self._finished(programs.initial_state(self, seed_or_key(key)))

    def compile_ahead(self, key: Key | int = 0) -> threading.Thread:
        """Compile the training program in the background while ``init(key)`` runs; join the thread before training."""
        return programs.compile_ahead(self, seed_or_key(key))

    @property
    def collects_as_its_family(self) -> bool:
        """True if ``collect`` is that of the family's base class, which collects rollouts by ``acting`` alone."""
        family = next((cls for cls in type(self).__mro__ if "acting" in vars(cls)), None)
        return family is not None and type(self).collect is vars(family).get("collect")

    @property
    def _steps_in_a_loop(self) -> bool:
        """True if a loop on the host steps the environments, False if a compiled program does."""
        return getattr(self.env, "host", None) == "loop" and self.collects_as_its_family

    @property
    def is_one_program(self) -> bool:
        """True if an iteration is a single compiled program."""
        return self.actors is None and not self._steps_in_a_loop

    def iterate(
        self, state: State, num_iterations: int, message: Callable[[str], None] = lambda _: None
    ) -> tuple[PyTreeDict | None, State]:
        """Run ``num_iterations``, up to ``programs.MAX_FOLD``; return ``(metrics [N, ...], state)``.

        The state is donated. N is at least ``num_iterations``; if actors are stopped it may be less, and metrics are
        ``None`` for 0. ``message`` is a callback for status messages of actors.
        """
        if self.actors is not None:
            return self.actors.iterate(self, state, num_iterations, message)
        if self._steps_in_a_loop:
            return load(_HOST_LOOP)(self, state, num_iterations)
        return without_env_faults(self, *programs.iterate_program(self, state, num_iterations), num_iterations)

    def step(self, state: State) -> tuple[PyTreeDict, State]:
        """Run one iteration; return metrics and the next state."""
        with self._host_errors():
            return self._finished(programs.step_program(self, state))

    def evaluate(self, state: State) -> PyTreeDict:
        """Return mean and spread of the returns of ``eval_episodes`` complete episodes; the state is only read."""
        if hasattr(self.actors, "evaluate"):  # the collector has the environments
            return self.actors.evaluate(self, state)
        with self._host_errors():
            return self._finished(programs.evaluate_program(self, state))

    def learn(
        self,
        state: State | None = None,
        *,
        key: Key | int = 0,
        recorder: Recorder | None = None,
        checkpointer: Checkpointer | None = None,
        progress: Mapping[str, Any] | None = None,
        should_stop: Callable[[], bool] | None = None,
        eval_at_start: bool = False,
    ) -> State:
        """Train until ``total_timesteps``, with recording and checkpoints.

        Args:
            state: state to continue from, with its iterations counted as done; ``None`` starts from ``init(key)``. Its
                memory is donated: use the returned state afterwards.
            key: seed or key of a new start.
            recorder: receives the metrics.
            checkpointer: saves states.
            progress: progress stored in the checkpoint of ``state``, to resume its run.
            should_stop: called between chunks of iterations; True ends the training early, after saving.
            eval_at_start: evaluate before the first step, too, if evaluations are enabled.

        Raises:
            TrainingDiverged: a loss became NaN or infinite; the last good checkpoint is kept.
            HostEnvError: a simulator on the host failed.
        """
        with self._host_errors():
            return run_learning(self, state, key, recorder, checkpointer, progress, should_stop, eval_at_start)

    def with_new_episodes(self, state: State) -> State:
        """Start new episodes in host environments whose simulators no longer match the state.

        Simulators that can be saved continue their episodes. New episodes use the next seeds of their sequence.
        """
        env: Any = self.env
        if not env.steps_on_host:
            return state

        def renewed(node: Any) -> Any:
            if not isinstance(node, EnvState) or env.is_live(node):
                return node
            restart = env.next_episodes
            for _ in range(node.done.ndim - 1):  # seeds, or members of a population
                restart = jax.vmap(restart)
            return restart(node)

        nodes, structure = jax.tree.flatten(state, is_leaf=lambda node: isinstance(node, EnvState))
        live = [renewed(node) for node in nodes]
        return state if all(map(operator.is_, live, nodes)) else jax.tree.unflatten(structure, live)

    @property
    def _has_simulators(self) -> bool:
        return self.env.steps_on_host or self.eval_env.steps_on_host

    def _host_errors(self) -> contextlib.AbstractContextManager:
        return load(_HOST_ERRORS)() if self._has_simulators else contextlib.nullcontext()

    def _finished(self, result: Any) -> Any:
        """Wait for ``result`` if simulators may fail in its program, so that errors are raised here."""
        return jax.block_until_ready(result) if self._has_simulators else result

    def close(self) -> None:
        """Release the resources of environments and stop the actors. JAX environments have no resources."""
        if self.actors is not None:
            self.actors.close()
        self.env.close()
        self.eval_env.close()


def ended_episodes(trajectory: SampleBatch) -> EpisodeStatistics:
    """Return the statistics of episodes that ended in a trajectory ``[T, B, ...]``, over all devices."""
    info = trajectory.extras.env_extras
    rows = (trajectory.dones, info.episode_return, info.episode_length)
    return episode_statistics(*collectives.gather_rows(rows, axis=1))


def split_setup_keys(key: Key) -> tuple[Key, Key, State]:
    """Split the key of ``setup`` into keys for the agent and the environments, and the entries that every state has.

    These are keys for training and for evaluation, and a counter of iterations.
    """
    agent_key, env_key, training_key, eval_key = jax.random.split(key, 4)
    return agent_key, env_key, State(key=training_key, eval_key=eval_key, iterations=WideCounter.create())
