"""Acting in rollouts of fixed length: what the families that learn from such have in common.

A rollout is one compiled loop (``collect_rollout``), or simulators on the host are stepped one step at a time by
``evorl.execution.host_loop``; both go by the same ``acting`` of the workflow.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from evorl.agent import AgentState
from evorl.envs.vector import VectorEnv
from evorl.rollout import ActionFn, rollout
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeData, State


class Acting(PyTreeData):
    """How an agent acts through one rollout.

    Attributes:
        agent_state: of the agent.
        key: of the rollout.
        warming_up: bool; whether actions are random ones. ``None`` where they never are.
    """

    agent_state: AgentState
    key: Key
    warming_up: Any = None


class ActsInRollouts(Protocol):
    """A workflow that learns from rollouts of fixed length."""

    env_fields: ClassVar[tuple[str, ...]]

    @property
    def env(self) -> VectorEnv:
        """The training environments."""
        ...

    @property
    def rollout_length(self) -> int:
        """Steps T."""
        ...

    @property
    def env_chunk(self) -> int | None:
        """Environments stepped at a time."""
        ...

    def acting(self, state: State) -> tuple[Acting, State]:
        """How the agent acts in the next rollout, and the state after its draws."""
        ...

    def action_fn(self, acting: Acting) -> ActionFn:
        """The function that chooses actions."""
        ...

    def collected(self, trajectory: SampleBatch) -> SampleBatch:
        """What of a rollout is learned from."""
        ...


def collect_rollout(workflow: ActsInRollouts, state: State) -> tuple[SampleBatch, State]:
    """A rollout ``[T, B, ...]`` of this device's environments, and the state after it."""
    acting, state = workflow.acting(state)
    trajectory, env_state = rollout(
        workflow.env.step,
        workflow.action_fn(acting),
        state.env_state,
        acting.agent_state,
        acting.key,
        workflow.rollout_length,
        env_extra_fields=workflow.env_fields,
        env_chunk=workflow.env_chunk,
    )
    return workflow.collected(trajectory), state.replace(env_state=env_state)
