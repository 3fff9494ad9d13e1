"""A worker of a parameter server: an ordinary workflow whose updates are sent instead of kept.

A worker has environments, a replay buffer and random draws of its own. Of its agent the server keeps what optimizers
step; target networks and the statistics of observations stay with the worker, which follows the server's parameters by
them as it would follow its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.config.nodes import node_from_config
from evorl.envs.remote import is_remote
from evorl.ops import processes
from evorl.ops.gradient_tap import optimizers_of, owned_by_optimizers, tapped, taps_in, with_fresh_taps
from evorl.ops.trees import copied
from evorl.types import Key, Params, PyTreeDict, State
from evorl.workflows.assembly import workflow_from_config
from evorl.workflows.on_policy import ActorCriticWorkflow
from evorl.workflows.parameter_server import ParameterServerSettings, Sent
from evorl.workflows.workflow import Workflow


def workflow_of(config: Mapping[str, Any] | Workflow) -> Workflow:
    """The workflow that a config describes, or the one that is given, if it can work for a parameter server.

    Raises:
        ValueError: it cannot, in words.
    """
    workflow = workflow_from_config(config) if isinstance(config, Mapping) else config
    name = type(workflow).__name__
    if not hasattr(workflow, "init_optimizers") or not optimizers_of(workflow):
        raise ValueError(
            f"{name} has no optimizer of its own whose gradients could be sent: take ppo, a2c, dqn or sac."
        )
    if workflow.actors is not None or workflow.execution.num_seeds is not None:
        raise ValueError(
            "A worker of a parameter server has one seed and no actors beside it: leave num_seeds and actors."
        )
    if is_remote(workflow.env) and workflow.eval_interval > 0:
        raise ValueError(
            f"eval_interval={workflow.eval_interval:g} asks for evaluations by a parameter server, to which no "
            "simulators come: choose 0. train/episode_return is of the episodes that workers' simulators play."
        )
    owned = ServedParameters.of(workflow).owned
    idle = [path for path in optimizers_of(workflow) if path not in owned]
    if idle:
        raise ValueError(
            f"{name} has no lasting {', '.join(idle)}, or changes parameters by other means than an optimizer: whole "
            "trajectories have to be sent, not gradients: evorl serve gathers those of simulators elsewhere, actors "
            "those of environments here."
        )
    return workflow


def settings_for(workflow: Workflow, settings: Mapping[str, Any] | None = None) -> ParameterServerSettings:
    """How a server combines what workers of this workflow send.

    Args:
        workflow: see ``workflow_of``.
        settings: the fields of ``ParameterServerSettings`` that can be set: mode, send and so on.

    Raises:
        ValueError: a setting is wrong, or gradients are wanted of several optimizers.
    """
    name, optimizer = next(iter(optimizers_of(workflow).items()))
    if isinstance(workflow, ActorCriticWorkflow):  # the server's parameters lie below the optimizer's name
        optimizer = optimizer.scaled(f"{name}/value", workflow.value_learning_rate_scale)
    defaults = {"total_timesteps": float(workflow.total_timesteps), "optimizer": optimizer}
    chosen = node_from_config(ParameterServerSettings, settings, "parameter_server", **defaults)
    names = list(ServedParameters.of(workflow).owned)
    if chosen.send == "gradient" and len(names) > 1:
        raise ValueError(
            f"{type(workflow).__name__} steps {', '.join(names)} one after another in one update, each by parameters "
            "that the step before it made: parameter_server.send=delta sends what comes of them."
        )
    return chosen


@dataclasses.dataclass(frozen=True)
class ServedParameters:
    """Which parameters of an agent the server keeps, and what stays with the workers.

    Attributes:
        owned: by the name of the optimizer, trees of numbers of leaves of ``agent_state.params``.
    """

    owned: Mapping[str, Any]

    @classmethod
    def of(cls, workflow: Workflow) -> ServedParameters:
        """Those that the workflow's optimizers step."""
        shapes = jax.eval_shape(lambda key: workflow.setup(key).agent_state, jax.random.key(0))
        return cls(owned_by_optimizers(workflow, shapes))

    def taken_from(self, agent_state: AgentState) -> PyTreeDict:
        """The server's part of an agent's parameters, by the name of the optimizer."""
        leaves = jax.tree.leaves(agent_state.params)
        return PyTreeDict({self._key(name): jax.tree.map(lambda i: leaves[i], x) for name, x in self.owned.items()})

    def put_into(self, agent_state: AgentState, params: Mapping[str, Any]) -> AgentState:
        """The agent with these in the place of its own."""
        leaves, structure = jax.tree.flatten(agent_state.params)
        for name, tree in self.owned.items():
            for i, leaf in zip(jax.tree.leaves(tree), jax.tree.leaves(params[self._key(name)]), strict=True):
                leaves[i] = leaf
        return agent_state.replace(params=structure.unflatten(leaves))

    def rest_of(self, agent_state: AgentState) -> list[Any]:
        """What else of an agent changes while it learns: target networks, statistics of observations."""
        leaves, is_rest = self._split(agent_state)
        return [leaf for leaf, rest in zip(leaves, is_rest, strict=True) if rest]

    def with_rest(self, agent_state: AgentState, rest: list[Any]) -> AgentState:
        """The agent with another's ``rest_of``."""
        leaves, is_rest = self._split(agent_state)
        others = iter(rest)
        return jax.tree.unflatten(
            jax.tree.structure(agent_state),
            [next(others) if mine else leaf for leaf, mine in zip(leaves, is_rest, strict=True)],
        )

    def _split(self, agent_state: AgentState) -> tuple[list[Any], list[bool]]:
        owned = set(jax.tree.leaves(dict(self.owned)))
        leaves, structure = jax.tree.flatten(agent_state.params)
        flags = structure.unflatten([i not in owned for i in range(len(leaves))])
        others = jax.tree.map(_is_sent, agent_state.replace(params=None))
        return jax.tree.leaves(agent_state), jax.tree.leaves(others.replace(params=flags))

    @staticmethod
    def _key(name: str) -> str:
        return name.replace(".", "_").replace(":", "_")


def _is_sent(leaf: Any) -> bool:
    """Keys of random draws stay where they are."""
    return not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


@dataclasses.dataclass(frozen=True)
class Work:
    """What came of one iteration.

    Attributes:
        sent: the gradient or the delta, of the structure of the server's parameters; ``None`` where nothing was
            learned yet, or its simulators were told to stop.
        steps: environment steps since the last that was sent.
        metrics: of the iteration, on the host.
    """

    sent: Params | None
    steps: int
    metrics: PyTreeDict


def worker_key(seed: int, worker: int) -> Key:
    """Where the random draws of a worker start: worker 0 draws as an ordinary training of this seed does."""
    key = jax.random.key(seed)
    return jax.random.fold_in(key, worker) if worker else key


class ParameterWorker:
    """Learns from its own environments, or from simulators that come to it, by parameters that it is given.

    Args:
        workflow: see ``workflow_of``.
        send: gradients or deltas.
        seed: of the whole training.
        worker: which one this is, from 0; each has random draws of its own.
        collector: who collects in place of its environments, as ``Workflow.actors``; ``None`` for nobody.
        message: is told in a sentence what happens to these.
    """

    def __init__(
        self,
        workflow: Workflow,
        send: Sent,
        seed: int = 0,
        worker: int = 0,
        collector: Any = None,
        message: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.served = ServedParameters.of(workflow)
        self._send: Sent = send
        self._message = message
        self._workflow = (tapped(workflow) if send == "gradient" else workflow).replace(actors=collector)
        self._total = float(workflow.total_timesteps)
        self._state: State = self._workflow.init(worker_key(seed, worker))
        self._done = self._unsent = 0

    @property
    def agent_state(self) -> AgentState:
        """The agent as it was after the last work: with the parameters of then."""
        return self._state.agent_state

    def take_rest(self, rest: list[Any]) -> None:
        """Begin with the target networks and statistics of another worker."""
        self._state = self._state.replace(agent_state=self.served.with_rest(self._state.agent_state, rest))

    def work(self, params: Params, step: int) -> Work:
        """One iteration.

        Args:
            params: the server's. They are only read.
            step: the server's, of the environment steps of all workers, for schedules.

        Raises:
            ValueError: gradients are sent, and an iteration takes several gradient steps.
        """
        own = copied(params)  # the iteration takes the memory of its state
        state = self._state.replace(agent_state=self.served.put_into(self._state.agent_state, own))
        metrics, self._state = self._at(step).iterate(with_fresh_taps(state), 1, self._message)
        if metrics is None:
            return Work(None, 0, PyTreeDict())
        metrics = jax.tree.map(lambda x: x[0], processes.on_host(metrics))
        steps = self._workflow.timesteps_per_iteration or int(metrics.pop("timesteps"))
        self._done += steps
        self._unsent += steps
        sent = self._gradient() if self._send == "gradient" else self._delta(params)
        steps, self._unsent = (self._unsent, 0) if sent is not None else (0, self._unsent)
        return Work(sent, steps, metrics)

    def _at(self, step: int) -> Workflow:
        """The workflow whose progress is that of all workers: its own steps are as large a share of fewer."""
        share = self._done / step if step and self._done else 1.0
        return self._workflow.replace(total_timesteps=self._total * share)

    def _gradient(self) -> Params | None:
        (tap,) = taps_in(self._state.opt_state)
        count = int(tap.count)
        if count > 1:
            raise ValueError(
                f"{type(self._workflow).__name__} takes {count} gradient steps in one iteration, and "
                "parameter_server.send=gradient is for one: choose send=delta, or a single update (num_epochs=1 and "
                "num_minibatches=1, or updates_per_iteration=1)."
            )
        (name,) = self.served.taken_from(self._state.agent_state)
        return PyTreeDict({name: tap.gradient}) if count else None

    def _delta(self, before: Params) -> Params:
        return _difference(self.served.taken_from(self._state.agent_state), before)


@jax.jit
def _difference(after: Params, before: Params) -> Params:
    return jax.tree.map(jnp.subtract, after, before)
