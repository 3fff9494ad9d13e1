"""Worker of a parameter server: an ordinary workflow that sends its updates to the server.

A worker has its own environments, replay buffer and random keys. The server stores the parameters that optimizers
update. Target networks and observation statistics stay with the worker, which updates them as in ordinary training, but
from the server's parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.config.nodes import node_from_config
from evorl.execution.collector import iterate
from evorl.execution.trainable import Collector, collected_by, most_timesteps
from evorl.metrics import EpisodeStatistics, WideCounter
from evorl.ops import processes
from evorl.ops.gradient_tap import optimizers_of, owned_by_optimizers, tapped, taps_in, with_fresh_taps
from evorl.ops.trees import copied
from evorl.parameter_server.update_rules import ParameterServerSettings, Sent
from evorl.types import Key, Params, PyTreeDict, State
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.on_policy import ActorCriticWorkflow, OnPolicyWorkflow
from evorl.workflows.workflow import Workflow, learning_algorithms


def check_supported(workflow: Workflow) -> None:
    """Raise ``ValueError`` with the reason if the workflow does not support a parameter server."""
    name = type(workflow).__name__
    if not hasattr(workflow, "init_optimizers") or not optimizers_of(workflow):
        raise ValueError(
            f"{name} has no optimizer whose gradients could be sent to a parameter server. Algorithms with one: "
            f"{learning_algorithms(OnPolicyWorkflow, OffPolicyWorkflow)}."
        )
    if workflow.execution.collector is not None or workflow.execution.num_seeds is not None:
        raise ValueError("a parameter server and its workers use one seed and no actors: remove num_seeds and actors.")
    resets, interval = list(getattr(workflow, "resets", ())), getattr(workflow, "redo_interval", None)
    if resets or interval is not None:
        raise ValueError(
            f"resets={resets} and redo_interval={interval} change the parameters of one worker, but the parameters of "
            "all workers are on the parameter server: remove both."
        )
    if workflow.env.is_remote and workflow.eval_interval > 0:
        raise ValueError(
            f"eval_interval={workflow.eval_interval:g} requests evaluations, but no simulators connect to a parameter "
            "server: set eval_interval to 0. train/episode_return reports the episodes of the workers' simulators."
        )
    owned = ServedParameters.of(workflow).owned
    idle = [path for path in optimizers_of(workflow) if path not in owned]
    if idle:
        part = idle[0].rpartition(".")[0]  # such as intrinsic
        raise ValueError(
            f"{name} has parameters of {', '.join(idle)} that a parameter server does not store: "
            f"{f'remove {part}, or send' if part else 'send'} trajectories instead, with evorl serve for remote "
            "simulators, or with actors for local environments."
        )


def settings_for(workflow: Workflow, settings: Mapping[str, Any] | None = None) -> ParameterServerSettings:
    """Return the server's settings for workers of this workflow.

    Args:
        workflow: workflow that ``check_supported`` accepts.
        settings: values for ``ParameterServerSettings``, such as mode and send; ``None`` for the defaults.

    Raises:
        ValueError: a setting is invalid, or ``send="gradient"`` with several optimizers or an adaptive learning rate.
    """
    name, optimizer = next(iter(optimizers_of(workflow).items()))
    if isinstance(workflow, ActorCriticWorkflow):  # paths of the server's parameters start with the optimizer's name
        optimizer = optimizer.scaled(f"{name}/value", workflow.value_learning_rate_scale)
    defaults = {"total_timesteps": float(workflow.total_timesteps), "optimizer": optimizer}
    server_settings = node_from_config(ParameterServerSettings, settings, "parameters", **defaults)
    names = list(ServedParameters.of(workflow).owned)
    if server_settings.send == "gradient" and len(names) > 1:
        raise ValueError(
            f"{type(workflow).__name__} applies several optimizers ({', '.join(names)}) in one update, each to the "
            "result of the previous one, which parameters.send=gradient does not support: set parameters.send=delta."
        )
    if server_settings.send == "gradient" and getattr(workflow, "desired_kl", None) is not None:
        raise ValueError(
            "desired_kl adapts the learning rate of a worker, but with parameters.send=gradient the server applies the "
            "gradients, with its own rate: set parameters.send=delta, or desired_kl=null."
        )
    return server_settings


@dataclasses.dataclass(frozen=True)
class ServedParameters:
    """Partition of an agent's state into parameters on the server and other arrays, which stay with the workers.

    Attributes:
        owned: for each optimizer, by name, a tree with the indices of its parameters among the leaves of ``params``.
    """

    owned: Mapping[str, Any]

    @classmethod
    def of(cls, workflow: Workflow) -> ServedParameters:
        """Return the partition that assigns the parameters updated by the workflow's optimizers to the server."""
        shapes = jax.eval_shape(lambda key: workflow.setup(key).agent_state, jax.random.key(0))
        return cls(owned_by_optimizers(workflow, shapes))

    def params_of(self, agent_state: AgentState) -> PyTreeDict:
        """Return the parameters of an agent that are on the server, by the name of their optimizer."""
        leaves = jax.tree.leaves(agent_state.params)
        return PyTreeDict({self._key(name): jax.tree.map(lambda i: leaves[i], x) for name, x in self.owned.items()})

    def with_params(self, agent_state: AgentState, params: Mapping[str, Any]) -> AgentState:
        """Return the agent with the parameters that are on the server replaced by ``params``."""
        leaves, structure = jax.tree.flatten(agent_state.params)
        for name, tree in self.owned.items():
            for i, leaf in zip(jax.tree.leaves(tree), jax.tree.leaves(params[self._key(name)]), strict=True):
                leaves[i] = leaf
        return agent_state.replace(params=structure.unflatten(leaves))

    def other_arrays(self, agent_state: AgentState) -> list[Any]:
        """Return the arrays that are not on the server, such as target networks and statistics, but no random keys."""
        leaves, is_rest = self._split(agent_state)
        return [leaf for leaf, rest in zip(leaves, is_rest, strict=True) if rest]

    def with_rest(self, agent_state: AgentState, rest: list[Any]) -> AgentState:
        """Return the agent with the arrays of ``other_arrays`` replaced by ``rest``, the arrays of another agent."""
        leaves, is_rest = self._split(agent_state)
        arrays = iter(rest)
        return jax.tree.unflatten(
            jax.tree.structure(agent_state),
            [next(arrays) if replace else leaf for leaf, replace in zip(leaves, is_rest, strict=True)],
        )

    def _split(self, agent_state: AgentState) -> tuple[list[Any], list[bool]]:
        owned = set(jax.tree.leaves(dict(self.owned)))
        leaves, structure = jax.tree.flatten(agent_state.params)
        flags = structure.unflatten([i not in owned for i in range(len(leaves))])
        others = agent_state.replace(params=None)  # random keys stay with their worker
        is_rest = jax.tree.map(lambda x: not jnp.issubdtype(x.dtype, jax.dtypes.prng_key), others)
        return jax.tree.leaves(agent_state), jax.tree.leaves(is_rest.replace(params=flags))

    @staticmethod
    def _key(name: str) -> str:
        return name.replace(".", "_").replace(":", "_")


@dataclasses.dataclass(frozen=True)
class Work:
    """Result of one iteration of a worker.

    Attributes:
        sent: gradient or delta, with the structure of the server's parameters; ``None`` if the iteration computed no
            gradient, for example before ``learning_starts``, or if the collector was stopped.
        steps: environment steps since the last push; 0 if ``sent`` is ``None``.
        metrics: metrics of the iteration, NumPy arrays; empty if the collector was stopped.
    """

    sent: Params | None
    steps: int
    metrics: PyTreeDict


def worker_key(seed: int, worker: int) -> Key:
    """Return the random key of a worker; worker 0 has the key of ordinary training with this seed."""
    key = jax.random.key(seed)
    return jax.random.fold_in(key, worker) if worker else key


class ParameterWorker:
    """Learns with the server's parameters from its own environments, or from simulators that connect to it.

    Args:
        workflow: workflow that ``check_supported`` accepts.
        send: content of a push, ``gradient`` or ``delta``; see ``ParameterServerSettings``.
        seed: seed of the training run.
        worker: number of this worker, from 0; determines its random key.
        collector: replaces the workflow's environments, such as ``TrainingServer``; ``None`` for the environments.
        message: callback for status messages of the collector.
    """

    def __init__(
        self,
        workflow: Workflow,
        send: Sent,
        seed: int = 0,
        worker: int = 0,
        collector: Collector | None = None,
        message: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.served = ServedParameters.of(workflow)
        self._send: Sent = send
        self._message = message
        self._workflow = collected_by(tapped(workflow) if send == "gradient" else workflow, collector)
        self._total = float(workflow.total_timesteps)
        self._state: State = self._workflow.init(worker_key(seed, worker))
        self._done = self._unsent = 0
        self._unsent_episodes: EpisodeStatistics | None = None

    @property
    def agent_state(self) -> AgentState:
        """State of the agent after the last iteration."""
        return self._state.agent_state

    def take_rest(self, rest: list[Any]) -> None:
        """Use target networks and observation statistics of another worker, from ``ServedParameters.other_arrays``."""
        self._state = self._state.replace(agent_state=self.served.with_rest(self._state.agent_state, rest))

    def work(self, params: Params, step: int) -> Work:
        """Run one iteration from the server's ``params`` at its ``step``; return gradient or delta, steps and metrics.

        Raises:
            ValueError: ``send`` is ``gradient``, and an iteration makes several gradient steps.
        """
        if step and not self._done:
            self._join(step)
        copies = copied(params)  # the iteration donates its state
        state = self._state.replace(agent_state=self.served.with_params(self._state.agent_state, copies))
        metrics, self._state = iterate(self._at(step), with_fresh_taps(state), 1, self._message)
        if metrics is None:
            return Work(None, 0, PyTreeDict())
        metrics = jax.tree.map(lambda x: x[0], processes.on_host(metrics))
        steps = self._workflow.timesteps_per_iteration or int(metrics.pop("timesteps"))
        self._done += steps
        self._unsent += steps
        if self._unsent_episodes is not None:
            metrics.episodes = self._unsent_episodes.merge(metrics.episodes)
        is_gradient = self._send == "gradient"
        sent = self._gradient() if is_gradient else _difference(self.served.params_of(self._state.agent_state), params)
        steps, self._unsent = (self._unsent, 0) if sent is not None else (0, self._unsent)
        self._unsent_episodes = metrics.get("episodes") if sent is None else None
        return Work(sent, steps, metrics)

    def _join(self, step: int) -> None:
        """Count the ``step`` environment steps before this worker as progress of its schedules, not of its warm-up."""
        per_iteration = most_timesteps(self._workflow)
        iterations = max(1, step // per_iteration)
        self._done = iterations * per_iteration
        self._state = self._state.replace(iterations=WideCounter.create(iterations))
        if isinstance(self._workflow, OffPolicyWorkflow):
            starts = self._workflow.learning_starts + self._done
            self._workflow = self._workflow.replace(learning_starts=starts)

    def _at(self, step: int) -> Workflow:
        """Return the workflow with ``total_timesteps`` scaled so that its schedules follow the steps of all workers."""
        fraction = self._done / step if step and self._done else 1.0
        return self._workflow.replace(total_timesteps=self._total * fraction)

    def _gradient(self) -> Params | None:
        (tap,) = taps_in(self._state.opt_state)
        count = int(tap.count)
        if count > 1:
            raise ValueError(
                f"{type(self._workflow).__name__} makes {count} gradient steps per iteration, but "
                "parameters.send=gradient needs exactly one: set parameters.send=delta, or a single update "
                "(num_epochs=1 and num_minibatches=1, or updates_per_iteration=1)."
            )
        (name,) = self.served.params_of(self._state.agent_state)
        return PyTreeDict({name: tap.gradient}) if count else None


@jax.jit
def _difference(after: Params, before: Params) -> Params:
    return jax.tree.map(jnp.subtract, after, before)
