"""Target networks: parameters that follow the online ones, slowly or in jumps."""

from __future__ import annotations

import jax

from evorl.types import Params


def polyak_update(target: Params, online: Params, tau: jax.Array | float) -> Params:
    """``(1 - tau) target + tau online`` in every leaf (Lillicrap et al. 2016, section 3); ``tau`` 1 copies."""
    return jax.tree.map(lambda t, o: t + tau * (o - t), target, online)


def hard_update(target: Params, online: Params, due: jax.Array | float = True) -> Params:
    """A copy of ``online`` when ``due`` (a bool, may be traced), else ``target`` unchanged (Mnih et al. 2015)."""
    return jax.tree.map(lambda t, o: jax.numpy.where(due, o, t), target, online)
