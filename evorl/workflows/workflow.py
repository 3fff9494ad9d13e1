"""What every algorithm offers: ``init``, ``step``, ``evaluate``, ``learn``; a step is ``collect`` then ``update``."""

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

_HOST_LOOP = "evorl.actors.host_loop:iterate_on_host"  # loaded where environments are outside of JAX
_HOST_ERRORS = "evorl.execution.host_errors:host_errors_in_words"


class Workflow(PyTreeNode):
    """A complete training procedure. Subclasses say how to set up, collect, and update; the rest is here, once.

    Called from Python, ``init``, ``step`` and ``evaluate`` are compiled; inside a user's ``jit``, ``vmap`` or ``scan``
    they compose. Numbers are leaves: another learning rate or discount runs the same compiled program.

    Attributes:
        env: the training environments.
        eval_env: the environments of the evaluation; built from a config they pay the environment's own reward.
        agent: how to act, and the losses.
        discount: discount factor of the return that is maximised.
        total_timesteps: environment steps of the whole training, over all environments and devices, for each seed.
        log_interval: environment steps between two rows of metrics.
        eval_interval: environment steps between evaluations; 0 turns them off.
        checkpoint_interval: environment steps between checkpoints; 0 keeps only the last one.
        eval_episodes: complete episodes in one evaluation.
        env_chunk: step at most this many environments at a time, see ``evorl.rollout.rollout``.
        execution: seeds and devices.
        actors: who collects beside the learner, ``evorl.actors.actor_loop.Actors``; ``None`` for nobody.
        keeping: what evaluations keep of their episodes, ``evorl.evaluators.keeping.Keeping``; ``None`` for nothing.

    Settings:
        workflow: the class that trains.
        num_envs: environments stepped together.
        autoreset_mode: how episodes follow one another: normal or fast.
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
        "total_timesteps": "(0, 9007199254740992]",  # 2^53: beyond, a float does not tell one step from the next
        "log_interval": "[0, inf)",
        "eval_interval": "[0, inf)",
        "checkpoint_interval": "[0, inf)",
    }
    # From how many bytes of environments per device on several cores are worth the exchange between them.
    min_bytes_per_device: ClassVar[int] = MIN_BYTES_PER_DEVICE
    # Whether every device has to have as many environments.
    needs_even_shares: ClassVar[bool] = True
    # Whether its updates are small operations, as networks of small environments are, and their batches.
    has_small_updates: ClassVar[bool] = False
    # Environments stepped together, where the config does not give ``num_envs``.
    default_num_envs: ClassVar[int] = 1
    # Config keys of other workflows that this one has no use for.
    foreign_keys: ClassVar[tuple[str, ...]] = ()
    # Entries of the state that ``evaluation`` reads: what has to be loaded for it.
    evaluation_entries: ClassVar[tuple[str, ...]] = ("agent_state", "eval_key", "iterations")
    # Metrics that are NaN while they have no value; elsewhere NaN means that the training diverged.
    optional_metrics: ClassVar[tuple[str, ...]] = ()
    rows_stand_alone: ClassVar[bool] = False  # whether a seed that diverges leaves the others to go on
    # Entries of the state with one row per environment, and the axis of those rows.
    sharded_axes: ClassVar[Mapping[str, int]] = {"env_state": 0}

    @classmethod
    def build_from_config(cls, config: Mapping[str, Any], **others: Any) -> Self:
        """Build the workflow, its environments and its agent from a (Hydra or plain) mapping.

        Raises:
            ValueError: a key is unknown, with the nearest valid name; or a value is invalid.
            TypeError: there are ``others``, which have no counterpart here.
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
        """Number of training environments and autoreset mode of a config, from which ``fields`` were read before."""
        num_envs = positive(config.get("num_envs", cls.default_num_envs), "num_envs")
        return num_envs, training_mode(config.get("autoreset_mode", AutoresetMode.NORMAL))

    @classmethod
    def make_agent(cls, config: Mapping[str, Any], env: VectorEnv) -> Agent:
        """Make the agent of the ``agent`` part of a config, of the class that the field ``agent`` is annotated with.

        Raises:
            ValueError: the algorithm cannot act in the action space.
        """
        return field_types(cls)["agent"].from_config(config, env)

    @property
    def corrects_lag(self) -> bool:
        """Whether it may learn from what a policy did that is a few updates old."""
        return False

    @property
    def learns_from_single_steps(self) -> bool:
        """Whether the steps of a rollout need not be followed by those of the next."""
        return True

    @property
    @abstractmethod
    def timesteps_per_iteration(self) -> int:
        """Environment steps that one step of the workflow takes, over all devices, for each seed.

        0 where they differ from step to step. Then ``timesteps`` among the metrics says how many they were, a counter
        of this name in the state adds them up, and what is due, the end too, comes with the first step that has reached
        the number of environment steps.
        """

    @property
    def most_timesteps_per_iteration(self) -> int:
        """What ``timesteps_per_iteration`` is at most, where it differs."""
        return self.timesteps_per_iteration

    def starts(self, key: Key) -> Any:
        """What the set-up of every seed starts from: a key of its own ``[S]``, or that of the only one."""
        return programs.seed_keys(self.execution, key)

    @abstractmethod
    def setup(self, key: Key) -> State:
        """The first state of one seed; pure. Everything that a step changes is in it."""

    @abstractmethod
    def collect(self, state: State) -> tuple[Any, State]:
        """Act in the environments: the experience (a ``SampleBatch``, or results of episodes), and the state after."""

    @abstractmethod
    def update(self, state: State, batch: Any) -> tuple[PyTreeDict, State]:
        """Learn from what was experienced, wherever that was: metrics (scalars by name), and the state after."""

    def pure_step(self, state: State) -> tuple[PyTreeDict, State]:
        """One iteration of one seed on this device: ``collect``, ``update``, count."""
        batch, state = self.collect(state)
        return self.learn_once(state, batch)

    def learn_once(self, state: State, batch: Any) -> tuple[PyTreeDict, State]:
        """The second half of an iteration: ``update``, count."""
        metrics, state = self.update(state, batch)
        return metrics, state.replace(iterations=state.iterations.add(1))

    def progress(self, state: State) -> jax.Array:
        """The share of the training that is over, in [0, 1]: for schedules."""
        return jnp.minimum(state.iterations.as_float() * self.timesteps_per_iteration / self.total_timesteps, 1.0)

    def evaluation(self, state: State) -> PyTreeDict:
        """The evaluation of one seed; pure. Its keys are its own stream, so that it changes nothing else."""
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
        """Tables and pictures of the state at the end of a run, by name; on the host."""
        return {}

    def init(self, key: Key | int = 0) -> State:
        """The first state, as one compiled program.

        Args:
            key: a seed or a key. With several seeds, seed i of them is the solo run of ``key + i``; or one key each.

        Raises:
            ValueError: the memory of the machine cannot hold the state, with the largest setting that it could.
        """
        with self._errors_in_words():
            return self._finished(programs.initial_state(self, seed_or_key(key)))

    def compile_ahead(self, key: Key | int = 0) -> threading.Thread:
        """Compile the training program in the background while ``init(key)`` runs; join the thread before training."""
        return programs.compile_ahead(self, seed_or_key(key))

    @property
    def collects_as_its_family(self) -> bool:
        """Whether it collects a rollout by ``acting``, and nothing comes before that or stands in its place."""
        family = next((cls for cls in type(self).__mro__ if "acting" in vars(cls)), None)
        return family is not None and type(self).collect is vars(family).get("collect")

    @property
    def _steps_in_a_loop(self) -> bool:
        """Whether a loop on the host steps its environments; else a compiled program does."""
        return getattr(self.env, "host", None) == "loop" and self.collects_as_its_family

    @property
    def is_one_program(self) -> bool:
        """Whether an iteration is a single compiled program, in which nothing is left to the host."""
        return self.actors is None and not self._steps_in_a_loop

    def iterate(
        self, state: State, num_iterations: int, message: Callable[..., None] = lambda *_: None
    ) -> tuple[PyTreeDict | None, State]:
        """``(metrics [N, ...], state)`` after so many iterations, up to ``programs.MAX_FOLD``; the state is donated.

        N is at least that, but where actors are told to stop: then it may be less, and metrics are ``None`` for 0.
        ``message`` is told in a sentence what happens to actors.
        """
        if self.actors is not None:
            return self.actors.iterate(self, state, num_iterations, message)
        if self._steps_in_a_loop:
            return load(_HOST_LOOP)(self, state, num_iterations)
        results = programs.iterate_program(self, state, num_iterations)
        return without_env_faults(self, *results, num_iterations, message)

    def step(self, state: State) -> tuple[PyTreeDict, State]:
        """One iteration: metrics and the next state."""
        with self._errors_in_words():
            return self._finished(programs.step_program(self, state))

    def evaluate(self, state: State) -> PyTreeDict:
        """Mean and spread of the returns of ``eval_episodes`` complete episodes; the state is only read."""
        if hasattr(self.actors, "evaluate"):  # who collects knows where episodes are played
            return self.actors.evaluate(self, state)
        with self._errors_in_words():
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
        """Train until ``total_timesteps``, recording and saving on the way.

        Args:
            state: where to start from, the iterations it has behind it being done; a fresh ``init(key)`` if ``None``.
                Its memory is given to the training (donated): go on with the state that is returned.
            key: the seed or key of a fresh start.
            recorder: where metrics go.
            checkpointer: where states are saved.
            progress: what the checkpoint that ``state`` was loaded from says of the run, to resume it.
            should_stop: asked between chunks; true ends the training early, after saving.
            eval_at_start: whether there is an evaluation before the first step, too, where there are any.

        Raises:
            TrainingDiverged: a loss became NaN or infinite; the last good checkpoint is kept.
            HostEnvError: a simulator on the host failed.
        """
        with self._errors_in_words():
            return run_learning(self, state, key, recorder, checkpointer, progress, should_stop, eval_at_start)

    def with_new_episodes(self, state: State) -> State:
        """The state with new episodes, where its environments are simulators that are not where it left them.

        Those that can be saved go on where they were. New episodes start by the seeds that are next in turn.
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

    def _errors_in_words(self) -> contextlib.AbstractContextManager:
        return load(_HOST_ERRORS)() if self._has_simulators else contextlib.nullcontext()

    def _finished(self, result: Any) -> Any:
        """``result``, waited for where simulators may fail in its program."""
        return jax.block_until_ready(result) if self._has_simulators else result

    def close(self) -> None:
        """Give back what the environments hold, and end the actors. JAX environments hold nothing."""
        if self.actors is not None:
            self.actors.close()
        self.env.close()
        self.eval_env.close()


def ended_episodes(trajectory: SampleBatch) -> EpisodeStatistics:
    """Statistics of the episodes that ended in a trajectory ``[T, B, ...]``, over the environments of all devices."""
    info = trajectory.extras.env_extras
    rows = (trajectory.dones, info.episode_return, info.episode_length)
    return episode_statistics(*collectives.gather_rows(rows, axis=1))


def split_setup_keys(key: Key) -> tuple[Key, Key, State]:
    """Keys of the agent's and the environments' set-up, and the entries of every state: a counter and two streams, for
    training and for evaluation.
    """
    agent_key, env_key, training_key, eval_key = jax.random.split(key, 4)
    return agent_key, env_key, State(key=training_key, eval_key=eval_key, iterations=WideCounter.create())
