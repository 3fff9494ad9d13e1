"""An optimizer that takes no step and keeps the gradient: by it an update becomes "gradient of a batch".

Every gradient of every algorithm passes through ``Optimizer.apply``. So whoever wants a workflow's gradients, a worker
of a parameter server for one, replaces its optimizers and reads them from the optimizers' state.
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from evorl.ops.optimization import Optimizer
from evorl.types import Params, PyTreeData

Tree = TypeVar("Tree")


class TappedGradient(PyTreeData):
    """What passed an optimizer since its state was made.

    Attributes:
        gradient: the sum of the gradients, of the structure of the parameters.
        count: how many they were, int32.
    """

    gradient: Params
    count: jax.Array

    @classmethod
    def of_none(cls, params: Params) -> TappedGradient:
        """Zeros, before the first gradient."""
        return cls(gradient=jax.tree.map(jnp.zeros_like, params), count=jnp.zeros((), jnp.int32))


class GradientTap(Optimizer):
    """Leaves the parameters as they are, to the bit, and adds each gradient to its state, a ``TappedGradient``.

    Gradients are neither clipped nor scaled: that is up to the optimizer that takes the step elsewhere.
    """

    def init(self, params: Params) -> TappedGradient:
        """See ``Optimizer.init``."""
        return TappedGradient.of_none(params)

    def scaled(self, part: str, scale: jax.Array | float | None) -> GradientTap:
        """Return the tap itself: gradients come as they are."""
        return self

    def apply(
        self, gradients: Params, opt_state: TappedGradient, params: Params, progress: jax.Array | float = 0.0
    ) -> tuple[Params, TappedGradient]:
        """See ``Optimizer.apply``."""
        total = jax.tree.map(jnp.add, opt_state.gradient, gradients)
        return params, TappedGradient(gradient=total, count=opt_state.count + 1)


class _OwnershipProbe(Optimizer):
    """Its state is the very parameters that it was made for."""

    name_of_field: str = ""

    def init(self, params: Params) -> _Owned:
        return _Owned(self.name_of_field, params)


class _Owned:
    """No pytree, so that it is a leaf of what holds it."""

    def __init__(self, name: str, params: Params) -> None:
        self.name, self.params = name, params


def _is_optimizer(node: Any) -> bool:
    return isinstance(node, Optimizer)


def optimizers_of(tree: Any) -> dict[str, Optimizer]:
    """Every optimizer in a workflow, or in any pytree, by its dotted path, such as ``critic_optimizer``."""
    nodes = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_optimizer)
    return {_dotted(path): node for path, node in nodes if _is_optimizer(node)}


def tapped(tree: Tree) -> Tree:
    """A workflow, or any pytree, with a tap in the place of every optimizer in it."""
    return jax.tree.map(lambda x: GradientTap() if _is_optimizer(x) else x, tree, is_leaf=_is_optimizer)


def taps_in(state: Any) -> list[TappedGradient]:
    """The states of all taps in a state, in the order of its leaves."""
    nodes = jax.tree.leaves(state, is_leaf=_is_tapped)
    return [node for node in nodes if _is_tapped(node)]


def with_fresh_taps(state: Tree) -> Tree:
    """The state as before the first gradient."""
    return jax.tree.map(lambda x: _cleared(x) if _is_tapped(x) else x, state, is_leaf=_is_tapped)


@jax.jit
def _cleared(tap: TappedGradient) -> TappedGradient:
    return TappedGradient.of_none(tap.gradient)


def owned_by_optimizers(workflow: Any, agent_state: Any) -> dict[str, Any]:
    """Which parameters each optimizer steps: trees of numbers of leaves of ``agent_state.params``.

    Args:
        workflow: with ``init_optimizers(agent_state)``, which gives each optimizer its parameters.
        agent_state: of the workflow, or its shapes.

    Returns:
        By the dotted path of the optimizer's field, with a number behind it where it is given several groups of
        parameters. One that is given none there, as it is begun anew within every update, is left out.
    """
    leaves, structure = jax.tree.flatten(agent_state.params)
    numbered = agent_state.replace(params=structure.unflatten(range(len(leaves))))
    probing = jax.tree_util.tree_map_with_path(
        lambda path, x: _OwnershipProbe(name_of_field=_dotted(path)) if _is_optimizer(x) else x,
        workflow,
        is_leaf=_is_optimizer,
    )
    groups: dict[str, Any] = {}
    for node in jax.tree.leaves(probing.init_optimizers(numbered)):
        if isinstance(node, _Owned):
            again = sum(name.partition(":")[0] == node.name for name in groups)
            groups[f"{node.name}:{again + 1}" if again else node.name] = node.params
    return groups


def _is_tapped(node: Any) -> bool:
    return isinstance(node, TappedGradient)


def _dotted(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
