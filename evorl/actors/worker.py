"""Worker of an actor: collects rollouts on request, with its environments and a copy of the policy.

Learner and actors exchange lists of NumPy arrays: the leaves of trees whose structure both know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.actors.host_loop import roll_on_host
from evorl.config.names import SHIPPED_WORKFLOWS, load_class
from evorl.execution.env_faults import refuse_faulty_rollout
from evorl.execution.host_errors import translate_host_errors
from evorl.ops.trees import as_untyped
from evorl.rollout import rollout, with_recurrent_state
from evorl.runs.spec import RunSpec
from evorl.sample_batch import SampleBatch

Leaves = list[np.ndarray]


def leaves_of(tree: Any) -> Leaves:
    """Return the leaves of a tree as NumPy arrays; random keys become their key data."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.tree.map(as_untyped, tree))]


def tree_of(leaves: Sequence[np.ndarray], like: Any) -> Any:
    """Return the tree with these leaves and the structure of ``like``, whose shapes are ignored."""
    pairs = zip(leaves, jax.tree.leaves(like), strict=True)
    return jax.tree.unflatten(jax.tree.structure(like), [_as_leaf(x, leaf.dtype) for x, leaf in pairs])


def _as_leaf(leaf: np.ndarray, dtype: Any) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(leaf)) if jnp.issubdtype(dtype, jax.dtypes.prng_key) else leaf


def acting_template(workflow: Any) -> tuple[Any, Any, Any]:
    """Return the shapes of the data exchanged with an actor: ``Acting``, the environment state, and a trajectory."""
    state = jax.eval_shape(workflow.setup, jax.random.key(0))
    acting, state = jax.eval_shape(workflow.acting, state)
    trajectory, env_state = jax.eval_shape(roll, workflow, acting, state.env_state)
    return acting, env_state, trajectory


def roll(workflow: Any, acting: Any, env_state: Any) -> tuple[SampleBatch, Any]:
    """Run a rollout of a workflow; return the trajectory for ``update``, and the final environment state."""
    trajectory, env_state = rollout(
        workflow.env.step,
        workflow.action_fn(acting),
        env_state,
        acting.agent_state,
        acting.key,
        workflow.rollout_length,
        env_extra_fields=workflow.env_fields,
        env_chunk=workflow.env_chunk,
    )
    return workflow.collected(trajectory), env_state


_roll = jax.jit(roll)


class Worker:
    """Environments and policy of an actor; ``spec`` has only the environments of this actor.

    Raises:
        ValueError: the settings are inconsistent.
        HostEnvError: the simulators cannot be created.
    """

    def __init__(self, spec: RunSpec) -> None:
        cls = load_class(spec.workflow["workflow"], "workflow", SHIPPED_WORKFLOWS)
        self.workflow = cls.build_from_config(spec.workflow_config())
        self._acting, self._env_state, _ = acting_template(self.workflow)
        self._local_state: Any = None  # state of the environments, unless the learner stores it
        self._uses_host_loop = not self.workflow.collector.is_one_program

    def answer(
        self, acting: Leaves, env_state: Leaves | None, start_key: np.ndarray | None
    ) -> tuple[Leaves, Leaves, bool]:
        """Collect a rollout; raise ``HostEnvError`` if an environment fails or returns non-finite values.

        Args:
            acting: leaves of the policy inputs, ``evorl.rollout.Acting``.
            env_state: leaves of the environment state; ``None`` continues this actor's last rollout, if any.
            start_key: key data for the first episodes; used only by a first rollout without ``env_state``.

        Returns:
            The leaves of the trajectory, and of the environment state if it was passed, else an empty list; and True if
            the state passed could not be stepped, so that new episodes began.
        """
        acting_inputs, env, restarts = tree_of(acting, self._acting), self.workflow.env, False
        with translate_host_errors():
            if env_state is not None:
                state = tree_of(env_state, self._env_state)
                if restarts := env.steps_on_host and not env.is_live(state):
                    state = env.next_episodes(state)
            elif self._local_state is not None:
                state = self._local_state
            else:
                state = env.reset(jax.random.wrap_key_data(jnp.asarray(start_key)))
                state = with_recurrent_state(state, acting_inputs.agent_state)
            run = roll_on_host if self._uses_host_loop else _roll
            trajectory, state = jax.block_until_ready(run(self.workflow, acting_inputs, state))
        refuse_faulty_rollout(env, trajectory)
        if env_state is not None:
            return leaves_of(trajectory), leaves_of(state), restarts
        self._local_state = state
        return leaves_of(trajectory), [], False

    def close(self) -> None:
        """Close the environments."""
        self.workflow.close()
