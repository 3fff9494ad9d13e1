"""Contract of all workflows for seeds that are trained together."""

from __future__ import annotations

from typing import Any

import jax

from evorl.execution import programs
from evorl.execution.seeds import state_of_seed
from tests.support.errors import raises_naming


class SeedContract:
    """Part of ``WorkflowContract``, which builds the workflows."""

    make: Any

    def test_one_seed_of_several_is_a_state_of_its_own(self) -> None:
        """One seed's state has the shapes of a single-seed run, so that export, rendering and replay accept both."""
        alone, together = (self.make(num_seeds=num_seeds) for num_seeds in (1, 2))
        key = jax.random.key(0)
        state = jax.eval_shape(
            lambda: state_of_seed(together.execution, programs.initial_state(together, key), 1),
        )
        shapes = jax.eval_shape(programs.initial_state, alone, key)
        assert jax.tree.structure(state) == jax.tree.structure(shapes)
        for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(shapes), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
        with raises_naming(ValueError, "seed_number=2", "0 to 1"):
            state_of_seed(together.execution, shapes, 2)
