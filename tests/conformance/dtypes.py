"""The promise of every workflow on networks that compute in bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.execution import programs
from tests.support.products import factors, in_bfloat16, is_narrow


class DtypeContract:
    """A part of ``WorkflowContract``, which makes workflows."""

    make: Any
    SMALL: ClassVar[Mapping[str, Any]]
    # Whether there are matrix products outside of networks, such as recombinations.
    has_other_products: ClassVar[bool] = False

    def test_a_step_in_bfloat16_keeps_state_and_metrics_in_float32(self) -> None:
        """All products of networks have factors in bfloat16; nothing that is stored or reported has."""
        workflow = self.make(**in_bfloat16(self.SMALL))
        state, plain = (programs.state_shapes(each, jax.random.key(0)) for each in (workflow, self.make()))
        assert jax.tree.structure(state) == jax.tree.structure(plain)
        assert jax.tree.leaves(state) == jax.tree.leaves(plain)
        traced = programs.step_program.trace(workflow, state)
        dtypes = factors(traced.jaxpr)
        assert jnp.dtype("bfloat16") in dtypes
        assert self.has_other_products or dtypes == {jnp.dtype("bfloat16")}
        metrics, after = programs.step_program(workflow, workflow.init(0))
        assert [(x.shape, x.dtype) for x in jax.tree.leaves(after)] == [
            (x.shape, x.dtype) for x in jax.tree.leaves(state)
        ]
        assert metrics
        assert not any(map(is_narrow, jax.tree.leaves(metrics)))
