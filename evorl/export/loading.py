"""The policy of a stored run: as a portable one, and as a function of observations in Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.agent import Agent, AgentState
from evorl.config.gate import scope
from evorl.config.values import BEST, seed_choice
from evorl.envs.space import Space
from evorl.envs.vector import VectorEnv
from evorl.execution.restoring import restore
from evorl.execution.runtime import prepare_for
from evorl.execution.seeds import state_of_seed
from evorl.export.portable_policy import NEXT, PortablePolicy, portable_policy
from evorl.reports.seed_choice import SeedChoice, choose_seed
from evorl.runs.best_run import find_run
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.stored import stored_spec
from evorl.types import State
from evorl.workflows.assembly import workflow_from_config
from evorl.workflows.workflow import Workflow


@dataclasses.dataclass(frozen=True)
class StoredPolicy:
    """The policy of a checkpoint.

    Attributes:
        policy: the policy.
        folder: of the run.
        env: the environments of its evaluations, closed where they are simulators.
        env_config: as the run's config describes them.
        title: of the environment, such as ``gymnax/CartPole-v1``.
        algorithm: the name of the workflow.
        timesteps: of the training, when the checkpoint was saved.
        checkpoint: ``best`` or ``latest``, or the number of its iteration.
        is_sample: whether actions are drawn.
        seed: the one of several seeds whose policy it is, and the reason.
        notices: what there is to say of the checkpoints.
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

    def in_words(self) -> str:
        """Which policy it is, in a line."""
        which = (
            f"the {self.checkpoint} checkpoint" if isinstance(self.checkpoint, str) else f"iteration {self.checkpoint}"
        )
        actions = "drawn" if self.is_sample else "greedy"
        seed = f", {self.seed.description}" if self.seed.description else ""
        return f"{self.algorithm} in {self.title}, {which} of {self.timesteps:,} steps{seed}, {actions} actions"


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
    """The policy of a run, as its evaluations act.

    Args:
        run: the run's folder, its name below ``runs_folder``, or ``latest``.
        runs_folder: where runs are.
        checkpoint: ``best`` (where none was scored the latest), ``latest``, or an iteration.
        sample: whether actions are drawn as in training, at its end, instead of the most confident ones.
        seed_number: of a run with several seeds, the number of one, from 0, or ``best``, the best by evaluation.
        trust: whether the run's config may name code from outside this package.

    Raises:
        RunFolderError: there is no such run, or its config is not to be trusted.
        CheckpointError: there is no such checkpoint.
        ValueError: an argument cannot be, in words.
    """
    folder = find_run(run, runs_folder)
    spec = stored_spec(folder, trust, {"devices": 1}, can_be_given=False)
    prepare_for(spec)
    workflow = workflow_from_config(spec.workflow_config())
    try:
        checkpointer = RunCheckpointer(folder.checkpoints)
        which: Any = "latest" if checkpoint == "best" and checkpointer.best_step is None else checkpoint
        entries = workflow.evaluation_entries
        state, progress = restore(workflow, checkpointer, spec.seed, which, entries)
        requested = seed_choice(seed_number)
        seed = choose_seed(folder.path, workflow.execution.num_seeds, int(progress["timesteps"]), requested)
        agent, agent_state = acting_agent(workflow, state, seed.number)
        if sample:
            agent_state = agent.at_progress(agent_state, jax.numpy.float32(1.0))
        env = spec.workflow["env"]
        env = dict(env) if isinstance(env, Mapping) else {"name": env}
        return StoredPolicy(
            policy=portable_policy(agent, agent_state, workflow.eval_env, sample),
            folder=folder.path,
            env=workflow.eval_env,
            env_config=env,
            title=workflow.eval_env.title or "",
            algorithm=type(workflow).__name__.removesuffix("Workflow"),
            timesteps=int(progress["timesteps"]),
            checkpoint=which,
            is_sample=sample,
            seed=seed,
            notices=tuple(checkpointer.notices),
        )
    finally:
        workflow.close()


def acting_agent(workflow: Workflow, state: State, seed_number: int = 0) -> tuple[Agent, AgentState]:
    """Who acts in a workflow's evaluations: the agent, of a population that of the best member, and what it learned.

    Args:
        workflow: the workflow.
        state: its state, or what of it an evaluation reads.
        seed_number: which seed, where several were trained side by side.

    Raises:
        ValueError: there are not so many seeds.
    """
    from evorl.ops.selection import best_member

    state = state_of_seed(workflow.execution, state, seed_number)
    is_population = "agent_state" not in state
    learned, scores = (state.members.agent_state, state.scores) if is_population else (state.agent_state, None)
    learned, scores = jax.tree.map(np.asarray, (learned, scores))
    if not is_population:
        return workflow.agent, learned
    population: Any = workflow
    best = int(best_member(scores))
    return population.inner.agent, jax.tree.map(lambda x: x[best], learned)


class LoadedPolicy:
    """Actions of observations, by NumPy arrays; what the policy remembers of an episode is kept here.

    Args:
        policy: the policy.
        seed: of random numbers, of a policy that draws its actions.

    Attributes:
        obs_space: what it observes, of the environment itself.
        action_space: the environment's own range of actions.
        action_repeat: how often the environment is stepped with each action.
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
        """Forget what was seen: an episode starts.

        Args:
            ended: bool ``[B]``, the rows where an episode starts; ``None`` for all.
        """
        if ended is None or self._memory is None:
            self._memory = None
            return
        fresh = np.asarray(ended, bool)
        for name, x in self._memory.items():
            self._memory[name] = np.where(fresh.reshape(-1, *(1,) * (x.ndim - 1)), np.zeros_like(x), x)

    def __call__(self, obs: Any) -> Any:
        """The action for an observation as the environment gives it, or actions for a batch of them ``[B, ...]``.

        Raises:
            ValueError: the observation is of another shape, or there are other rows than before.
        """
        given = self._policy.arrays_of(obs)
        arrays = {port.name: np.asarray(given[port.name]).astype(port.dtype) for port in self._policy.observations}
        first = self._policy.observations[0]
        is_single = arrays[first.name].ndim == len(first.shape)
        if is_single:
            arrays = {name: x[None] for name, x in arrays.items()}
        for port in self._policy.observations:
            if arrays[port.name].shape[1:] != port.shape:
                shape = list(arrays[port.name].shape)
                raise ValueError(
                    f"{port.name} is of the shape {shape[1:] if is_single else shape}, and the policy observes "
                    f"{list(port.shape)}, or rows of it."
                )
        num_rows = len(arrays[first.name])
        if self._memory is None:
            self._memory = self._policy.initial_memory(num_rows)
        if any(len(x) != num_rows for x in self._memory.values()):
            raise ValueError(f"the policy remembers other rows than these {num_rows}: call reset() before.")
        outputs = self._step({**arrays, **self._memory, **self._policy.drawn(self._rng, num_rows)})
        outputs = {name: np.asarray(x) for name, x in outputs.items()}
        self._memory = {name: outputs[NEXT + name] for name in self._memory}
        actions = self._policy.action_of(outputs)
        return jax.tree.map(lambda x: x[0], actions) if is_single else actions


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
    """The policy of a stored run as a function: ``policy = evorl.load_policy(run)``, ``action = policy(obs)``.

    Observations are those of the environment itself, without wrappers, and actions in its own range. Where an episode
    starts, call ``policy.reset()``.

    Args:
        run: the run's folder, its name below ``runs_folder``, or ``latest``.
        runs_folder: where runs are.
        checkpoint: ``best`` (where none was scored the latest), ``latest``, or an iteration.
        sample: whether actions are drawn as in training instead of the most confident ones.
        seed_number: of a run with several seeds, the number of one, from 0, or ``best``, the best by evaluation.
        seed: of the draws.
        trust: whether the run's config may name code from outside this package.

    Raises:
        RunFolderError: there is no such run, or its config is not to be trusted.
        CheckpointError: there is no such checkpoint.
        ValueError: an argument cannot be, in words.
    """
    options: dict[str, Any] = {"checkpoint": checkpoint, "sample": sample, "seed_number": seed_number, "trust": trust}
    return LoadedPolicy(stored_policy(run, runs_folder, **options).policy, seed)
