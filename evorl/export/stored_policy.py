"""Loads the policy of a stored run, as a portable policy or as a Python function of observations."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from evorl.agent import Agent, AgentState
from evorl.assembly import workflow_from_config
from evorl.config.gate import scope
from evorl.config.values import BEST, seed_choice, short_repr
from evorl.envs.host.answers import changes_values
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Discrete, Space, leaf_spaces
from evorl.envs.vector import VectorEnv
from evorl.execution.restoration import restore
from evorl.execution.runtime import prepare_for
from evorl.execution.seeds import state_of_seed
from evorl.export.portable_policy import NEXT, PortablePolicy, portable_policy
from evorl.networks.recurrent import computing_in
from evorl.ops.trees import row_of
from evorl.reports.seed_choice import SeedChoice, choose_seed
from evorl.runs.best_run import find_run
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.stored import StoredConfig
from evorl.types import State
from evorl.workflows.workflow import Workflow


@dataclasses.dataclass(frozen=True)
class StoredPolicy:
    """The policy of a checkpoint.

    Attributes:
        policy: the policy.
        folder: the run folder.
        env: the evaluation environments, already closed if they are simulators.
        env_config: config of the environments, from the run's config.
        title: name of the environment, such as ``gymnax/CartPole-v1``.
        algorithm: name of the algorithm, such as ``PPO``.
        timesteps: environment steps trained, per seed, when the checkpoint was saved.
        checkpoint: ``best`` or ``latest``, or the number of the iteration if it was requested by number.
        is_sample: True if actions are sampled, False if they are greedy.
        seed: the chosen seed of a run with several seeds, and the reason for the choice.
        notices: messages about corrupted checkpoints, for the user.
        in_float32: the policy in float32, for file formats without bfloat16; ``None`` if ``policy`` is float32.
    """

    policy: PortablePolicy
    folder: Path
    env: VectorEnv
    env_config: dict[str, Any]
    title: str
    algorithm: str
    timesteps: int
    checkpoint: str | int
    is_sample: bool
    seed: SeedChoice
    notices: tuple[str, ...]
    in_float32: PortablePolicy | None = None

    def describe(self) -> str:
        """Return a one-line description of the policy."""
        is_name = isinstance(self.checkpoint, str)
        which = f"the {self.checkpoint} checkpoint" if is_name else f"iteration {self.checkpoint}"
        actions = ("sampled actions" if self.is_sample else "greedy actions") + self.policy.describe_repeat()
        seed = f", {self.seed.description}" if self.seed.description else ""
        return f"{self.algorithm} in {self.title}, {which} of {self.timesteps:,} steps{seed}, {actions}"


def selected_policy(options: Mapping[str, Any]) -> StoredPolicy:
    """Load the policy that options of a command select, see ``stored_policy``; ``checkpoint`` may be digits."""
    checkpoint = str(options["checkpoint"])
    return stored_policy(
        checkpoint=int(checkpoint) if checkpoint.isdigit() else checkpoint,
        **{name: options[name] for name in ("run", "runs_folder", "sample", "seed_number", "trust")},
    )


@scope()
def stored_policy(
    run: str | Path,
    runs_folder: str | Path = "runs",
    *,
    checkpoint: str | int = "best",
    sample: bool = False,
    seed_number: int | str = BEST,
    trust: bool = False,
) -> StoredPolicy:
    """Load the policy of a stored run. For the arguments and errors see ``load_policy``."""
    folder = find_run(run, runs_folder)
    spec = StoredConfig.read(folder).spec(trust, {"devices": 1}, can_be_overridden=False)
    prepare_for(spec)
    workflow = workflow_from_config(spec.workflow_config())
    try:
        checkpointer = RunCheckpointer(folder.checkpoints)
        which = checkpointer.available(checkpoint)
        state, progress = restore(workflow, checkpointer, spec.seed, which, workflow.evaluation_entries)
        requested = seed_choice(seed_number)
        seed = choose_seed(folder.path, workflow.execution.num_seeds, int(progress["timesteps"]), requested)
        agent, agent_state = acting_agent(workflow, state, seed.number)
        if sample:
            agent_state = agent.at_progress(agent_state, jax.numpy.float32(1.0))
        widened, options = in_float32(agent), (agent_state, workflow.eval_env, sample)
        return StoredPolicy(
            policy=portable_policy(agent, *options),
            folder=folder.path,
            env=workflow.eval_env,
            env_config=dict(spec.env),
            title=workflow.eval_env.title or "",
            algorithm=type(workflow).__name__.removesuffix("Workflow"),
            timesteps=int(progress["timesteps"]),
            checkpoint=which,
            is_sample=sample,
            seed=seed,
            notices=tuple(checkpointer.notices),
            in_float32=None if widened is None else portable_policy(widened, *options),
        )
    finally:
        workflow.close()


def in_float32(agent: Agent) -> Agent | None:
    """Return the agent with networks that compute in float32; ``None`` if they already do."""
    fields = {field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}
    networks = {name: value for name, value in fields.items() if isinstance(value, nn.Module)}
    widened = {name: computing_in(network, "float32") for name, network in networks.items()}
    return None if widened == networks else agent.replace(**widened)


def acting_agent(workflow: Workflow, state: State, seed_number: int = 0) -> tuple[Agent, AgentState]:
    """Return the agent that acts in a workflow's evaluations (of a population, the best member), and its state.

    Args:
        workflow: the workflow.
        state: the workflow's state, or the part of the state that an evaluation reads.
        seed_number: index of the seed, from 0, if several were trained in parallel.

    Raises:
        ValueError: the workflow has no seed of this index.
    """
    from evorl.ops.selection import best_member

    state = state_of_seed(workflow.execution, state, seed_number)
    if "agent_state" in state:
        return workflow.agent, jax.tree.map(np.asarray, state.agent_state)
    population: Any = workflow
    best = int(best_member(state.scores))
    agent = population.member(state.hyper_parameters[best]).agent
    return agent, jax.tree.map(lambda x: np.asarray(x)[best], state.members.agent_state)


class LoadedPolicy:
    """Function from observations to actions, NumPy arrays or trees of arrays; keeps the policy's memory of an episode.

    Args:
        policy: the policy.
        seed: seed of sampled actions.

    Attributes:
        obs_space: observation space of the environment without wrappers.
        action_space: action space of the environment without wrappers.
        action_repeat: number of environment steps per action.
    """

    def __init__(self, policy: PortablePolicy, seed: int = 0) -> None:
        self._policy = policy
        self._step = jax.jit(policy.rows)
        self._rng = np.random.default_rng(seed)
        self._memory: dict[str, np.ndarray] | None = None
        self.obs_space: Space = policy.obs_space
        self.action_space: Space = policy.action_space
        self.action_repeat = policy.action_repeat

    def reset(self, ended: Any = None) -> None:
        """Reset the memory at the start of an episode.

        Args:
            ended: bool ``[B]``, or a bool if B is 1: True where an episode has ended; ``None`` resets all, and the next
                call may change B.

        Raises:
            ValueError: ``ended`` has the wrong shape.
        """
        if ended is None or self._memory is None:
            self._memory = None
            return
        fresh = np.atleast_1d(np.asarray(ended, bool))
        for name, x in self._memory.items():
            if fresh.shape != x.shape[:1]:
                shapes = f"ended has the shape {list(np.shape(ended))}, but the batch has the shape [{len(x)}]"
                raise ValueError(f"{shapes}: pass one value for each observation, or call reset() for all.")
            self._memory[name] = np.where(fresh.reshape(-1, *(1,) * (x.ndim - 1)), np.zeros_like(x), x)

    def __call__(self, obs: Any) -> Any:
        """Return the action for one observation of the environment, or the actions for a batch ``[B, ...]``.

        Raises:
            ValueError: ``obs`` has the wrong structure or shape, a choice that does not exist, or a number that its
                dtype cannot hold; or the policy has memory of a different batch size.
        """
        try:
            named, ports = self._policy.arrays_of(obs), self._policy.observations
            with np.errstate(invalid="ignore"):  # checked below
                arrays = {port.name: np.asarray(named[port.name]).astype(port.dtype) for port in ports}
        except (LookupError, TypeError, ValueError) as error:
            shapes = f"arrays of the shapes {jax.tree.map(lambda x: list(x.shape), self.obs_space.spec)}"
            raise ValueError(f"obs must be {shapes}, or a batch of them, got {short_repr(obs)}.") from error
        first = self._policy.observations[0]
        is_single = arrays[first.name].ndim == len(first.shape)
        if is_single:
            arrays = {name: x[None] for name, x in arrays.items()}
        for port, space in zip(self._policy.observations, leaf_spaces(self.obs_space), strict=True):
            if arrays[port.name].shape[1:] != port.shape:
                shape = list(arrays[port.name].shape)
                raise ValueError(
                    f"{port.name} has the shape {shape[1:] if is_single else shape}: pass one observation, of shape "
                    f"{list(port.shape)}, or a batch of observations."
                )
            is_outside = isinstance(space, Discrete | MultiDiscrete) and not np.all(space.contains(arrays[port.name]))
            if is_outside or changes_values(np.asarray(named[port.name]), port.dtype):
                raise ValueError(f"{port.name} must be of {space} ({port.dtype}), got {short_repr(named[port.name])}.")
        num_rows = len(arrays[first.name])
        if self._memory is None:
            self._memory = self._policy.initial_memory(num_rows)
        if any(len(x) != num_rows for x in self._memory.values()):
            raise ValueError(f"the policy's memory has a batch size other than {num_rows}: call reset() first.")
        outputs = self._step({**arrays, **self._memory, **self._policy.drawn(self._rng, num_rows)})
        outputs = {name: np.asarray(x) for name, x in outputs.items()}
        self._memory = {name: outputs[NEXT + name] for name in self._memory}
        actions = self._policy.action_of(outputs)
        return row_of(actions) if is_single else actions


def load_policy(
    run: str | Path = "latest",
    runs_folder: str | Path = "runs",
    *,
    checkpoint: str | int = "best",
    sample: bool = False,
    seed_number: int | str = BEST,
    seed: int = 0,
    trust: bool = False,
) -> LoadedPolicy:
    """Load the policy of a stored run as a function: ``policy = evorl.load_policy(run)``, ``action = policy(obs)``.

    Observations and actions are in the spaces of the environment without wrappers. Call ``policy.reset()`` at the
    start of each episode.

    Args:
        run: the run's folder, its name below ``runs_folder``, ``latest``, or the path or address of a packed policy.
        runs_folder: folder of all runs. If ``run`` is a sweep or a search, its best run is loaded.
        checkpoint: ``best`` (the latest if none has a score), ``latest``, or an iteration number.
        sample: true for actions that are sampled as at the end of training; by default they are greedy.
        seed_number: with several seeds, a seed index from 0, or ``best``, the seed with the highest evaluation return.
        seed: seed of the sampled actions.
        trust: true if the run's config may name code from outside this package.

    Raises:
        RunFolderError: the run does not exist or cannot be read, or its config is not trusted.
        CheckpointError: the checkpoint does not exist or is corrupted.
        ValueError: an argument is invalid, or the policy has no greedy actions and ``sample`` is false.
    """
    options: dict[str, Any] = {"checkpoint": checkpoint, "sample": sample, "seed_number": seed_number, "trust": trust}
    stored = stored_policy(run, runs_folder, **options)
    if stored.notices:
        warnings.warn(" ".join(stored.notices), stacklevel=2)
    return LoadedPolicy(stored.policy, seed)
