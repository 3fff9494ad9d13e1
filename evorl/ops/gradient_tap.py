"""Optimizer that accumulates gradients instead of taking steps, so that an update only computes gradients of a batch.

Gradients of losses pass through ``Optimizer.apply``, except for TRPO's policy. To obtain a workflow's gradients, as a
worker of a parameter server does, replace the workflow's optimizers with taps and read the taps' states.
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from evorl.ops.optimization import Optimizer
from evorl.ops.trees import leaf_name
from evorl.types import Params, PyTreeData

Tree = TypeVar("Tree")


class TappedGradient(PyTreeData):
    """Gradients that an optimizer received since its state was initialized.

    Attributes:
        gradient: sum of the gradients, with the structure of the parameters.
        count: number of gradients, int32.
    """

    gradient: Params
    count: jax.Array

    @classmethod
    def of_none(cls, params: Params) -> TappedGradient:
        """Return zeros, the state before the first gradient."""
        return cls(gradient=jax.tree.map(jnp.zeros_like, params), count=jnp.zeros((), jnp.int32))


class GradientTap(Optimizer):
    """Optimizer that keeps the parameters bit-identical and adds each gradient to its state, a ``TappedGradient``.

    Gradients are neither clipped nor scaled; the optimizer that applies them later does both.
    """

    def init(self, params: Params) -> TappedGradient:
        return TappedGradient.of_none(params)

    def scaled(self, part: str, scale: jax.Array | float | None) -> GradientTap:
        return self

    def apply(
        self, gradients: Params, opt_state: TappedGradient, params: Params, progress: jax.Array | float = 0.0
    ) -> tuple[Params, TappedGradient]:
        total = jax.tree.map(jnp.add, opt_state.gradient, gradients)
        return params, TappedGradient(gradient=total, count=opt_state.count + 1)


class _OwnershipProbe(Optimizer):
    """Optimizer whose ``init`` returns, in place of a state, its field's name and the parameters, as an ``_Owned``."""

    name_of_field: str = ""

    def init(self, params: Params) -> _Owned:
        return _Owned(self.name_of_field, params)


class _Owned:
    """Parameters of one optimizer; not a pytree, and therefore a leaf of the tree that contains it."""

    def __init__(self, name: str, params: Params) -> None:
        self.name, self.params = name, params


def _is_optimizer(node: Any) -> bool:
    return isinstance(node, Optimizer)


def optimizers_of(tree: Any) -> dict[str, Optimizer]:
    """Return every optimizer in a workflow or other pytree by its dotted path, such as ``critic_optimizer``."""
    nodes = jax.tree.leaves_with_path(tree, is_leaf=_is_optimizer)
    return {leaf_name(path): node for path, node in nodes if _is_optimizer(node)}


def tapped(tree: Tree) -> Tree:
    """Return a workflow or other pytree with every optimizer replaced by a ``GradientTap``."""
    return jax.tree.map(lambda x: GradientTap() if _is_optimizer(x) else x, tree, is_leaf=_is_optimizer)


def taps_in(state: Any) -> list[TappedGradient]:
    """Return the states of all taps in a workflow's state, in leaf order."""
    return [node for node in jax.tree.leaves(state, is_leaf=_is_tapped) if _is_tapped(node)]


def with_fresh_taps(state: Tree) -> Tree:
    """Return a workflow's state with the states of all taps reset to zero."""
    return jax.tree.map(lambda x: _cleared(x) if _is_tapped(x) else x, state, is_leaf=_is_tapped)


@jax.jit
def _cleared(tap: TappedGradient) -> TappedGradient:
    return TappedGradient.of_none(tap.gradient)


def owned_by_optimizers(workflow: Any, agent_state: Any) -> dict[str, Any]:
    """Return the parameters that each optimizer updates, as trees of leaf indices of ``agent_state.params``.

    Args:
        workflow: workflow whose ``init_optimizers(agent_state)`` passes each optimizer its parameters.
        agent_state: state of the agent; its leaves may be shapes.

    Returns:
        Trees by the dotted path of the optimizer's field. If an optimizer receives several groups of parameters, the
        paths of later groups end with ``:2``, ``:3``, etc. Optimizers that ``init_optimizers`` skips are omitted.
    """
    leaves, structure = jax.tree.flatten(agent_state.params)
    numbered = agent_state.replace(params=structure.unflatten(range(len(leaves))))
    probing = jax.tree.map_with_path(
        lambda path, x: _OwnershipProbe(name_of_field=leaf_name(path)) if _is_optimizer(x) else x,
        workflow,
        is_leaf=_is_optimizer,
    )
    groups: dict[str, Any] = {}
    for node in jax.tree.leaves(probing.init_optimizers(numbered)):
        if isinstance(node, _Owned):
            earlier = sum(name.partition(":")[0] == node.name for name in groups)
            groups[f"{node.name}:{earlier + 1}" if earlier else node.name] = node.params
    return groups


def _is_tapped(node: Any) -> bool:
    return isinstance(node, TappedGradient)
