"""Batches of seeds; ``tests/conformance`` tests for every workflow that seeds are independent."""

from __future__ import annotations

import jax.numpy as jnp

from evorl.execution.seeds import rows_of_seeds, state_of_seed
from evorl.execution.trainable import Execution
from evorl.types import State
from tests.support.errors import raises_naming

STATE = State(iterations=jnp.int32(4), params={"w": jnp.arange(6.0).reshape(3, 2)})


def test_all_seeds_share_the_iterations() -> None:
    one, two = rows_of_seeds(STATE, 1), rows_of_seeds(STATE, slice(0, 2))
    assert one.params["w"].tolist() == [2.0, 3.0]
    assert two.params["w"].shape == (2, 2)
    assert int(one.iterations) == int(two.iterations) == 4


def test_a_run_without_an_axis_of_seeds_is_its_only_seed() -> None:
    assert state_of_seed(Execution(), STATE) is STATE
    assert state_of_seed(Execution(num_seeds=3), STATE, 2).params["w"].tolist() == [4.0, 5.0]
    for execution, number in ((Execution(), 1), (Execution(num_seeds=3), 3), (Execution(num_seeds=3), -1)):
        with raises_naming(ValueError, f"seed_number={number}", f"0 to {(execution.num_seeds or 1) - 1}"):
            state_of_seed(execution, STATE, number)
