"""Iso+line variation operator (Vassiliades & Mouret 2018, https://arxiv.org/abs/1804.03906)."""

from __future__ import annotations

from typing import Annotated, TypeVar

import jax

from evorl.ec.safeguards import finite_or
from evorl.fields import Within
from evorl.ops.projection import Projection, projected
from evorl.ops.random import per_leaf, row_keys
from evorl.ops.trees import num_rows
from evorl.types import Key, PyTreeNode, pytree_field

Tree = TypeVar("Tree")


class IsoLineVariation(PyTreeNode):
    """Variation of an elite x to ``x + iso_sigma N(0, I) + line_sigma (y - x) N(0, 1)`` for another elite y (eq. 1).

    Attributes:
        iso_sigma: standard deviation of the noise on every parameter.
        line_sigma: standard deviation of the step towards the other parent, as a multiple of the parents' distance.
        projection: projection of the weights of children: ``unit_norm`` scales the weights of each unit to norm 1;
            ``unit_norm_and_gains`` also scales gains and shifts of normalization layers, see ``evorl.ops.projection``;
            ``None`` for no projection.
    """

    iso_sigma: Annotated[float, Within("[0, inf)")] = 0.005
    line_sigma: Annotated[float, Within("[0, inf)")] = 0.05
    projection: Projection | None = pytree_field(static=True, default=None)

    def children(self, key: Key, first: Tree, second: Tree) -> Tree:
        """Return children ``[N, ...]``; entries of ``first`` replace non-finite ones. ``key`` is one key or ``[N]``."""
        keys = row_keys(key, num_rows(first))
        line_keys, iso_keys = (jax.vmap(jax.random.fold_in, (0, None))(keys, i) for i in range(2))
        steps = self.line_sigma * jax.vmap(jax.random.normal)(line_keys)  # [N]

        def child(key: Key, x: jax.Array, y: jax.Array, step: jax.Array) -> jax.Array:
            return x + self.iso_sigma * jax.random.normal(key, x.shape) + step * (y - x)

        children = per_leaf(child, iso_keys, first, second, jax.tree.map(lambda _: steps, first))
        return projected(finite_or(children, first), self.projection)
