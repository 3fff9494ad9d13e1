"""Matrix products and sums of traced programs, and configs whose networks compute in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax.extend.core as jex
import jax.numpy as jnp


def in_bfloat16(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a workflow with ``dtype: bfloat16`` in every network, also of inner workflows."""
    changed = {name: in_bfloat16(value) if isinstance(value, Mapping) else value for name, value in config.items()}
    if isinstance(config.get("network"), Mapping):
        changed["network"] = {**config["network"], "dtype": "bfloat16"}
    return changed


def factors(jaxpr: Any) -> set[Any]:
    """Return the dtypes of the factors of all matrix products and convolutions of a program."""
    return {
        var.aval.dtype
        for eqn in _equations(jaxpr)
        if eqn.primitive.name in ("dot_general", "conv_general_dilated")
        for var in eqn.invars
    }


def sums(jaxpr: Any) -> set[Any]:
    """Return the dtypes of the operands of sums in a program; products are not counted."""
    return {eqn.invars[0].aval.dtype for eqn in _equations(jaxpr) if eqn.primitive.name in ("reduce_sum", "cumsum")}


def is_narrow(x: Any) -> bool:
    """Return True if an array, or its shape, is in bfloat16."""
    return x.dtype == jnp.bfloat16


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, jex.Jaxpr | jex.ClosedJaxpr):
                    yield from _equations(inner)
