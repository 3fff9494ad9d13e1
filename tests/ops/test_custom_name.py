from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from evorl.ec.optimizers.open_es import OpenES
from evorl.ops.custom_name import CustomName
from evorl.ops.optimization import Optimizer

NAME = "notebook:mine"


def _sgd(rate: float) -> optax.GradientTransformation:
    return optax.sgd(rate)


def _redefined(rate: float, momentum: float = 0.5) -> optax.GradientTransformation:
    return optax.sgd(-1.0, momentum)


@jax.jit
def _stepped(optimizer: Optimizer) -> jax.Array:
    return optimizer.apply(jnp.ones(()), optimizer.init(jnp.ones(())), jnp.ones(()))[0]


@jax.jit
def _update_of_mean(optimizer: OpenES) -> Any:
    updates, _ = optimizer.optimizer.update(jnp.ones(()), optimizer.optimizer.init(jnp.ones(())), jnp.ones(()))
    return updates


def test_names_are_equal_if_text_and_function_are() -> None:
    first, second = CustomName(NAME, _sgd), CustomName(NAME, _redefined)

    for other, is_equal in ((CustomName(NAME, _sgd), True), (second, False), (CustomName("notebook:b", _sgd), False)):
        assert (first == other) is is_equal
        assert (first != other) is not is_equal
    assert len({first, second, CustomName(NAME, _sgd)}) == 2


@pytest.mark.parametrize("text", [NAME, "adam"])
def test_a_name_equals_its_text(text: str) -> None:
    name = CustomName(NAME, _sgd)

    assert (name == text) is (text == name) is (text == NAME)
    assert (name != text) is (text != name) is (text != NAME)
    assert (name in (text,)) is (text == NAME)


def test_a_redefined_optimizer_replaces_the_old_one_in_compiled_programs() -> None:
    old, new = (Optimizer(CustomName(NAME, function), learning_rate=0.1) for function in (_sgd, _redefined))

    assert jnp.allclose(_stepped(old), 0.9)
    assert jnp.allclose(_stepped(new), 2.0)
    with_option = Optimizer(CustomName(NAME, _redefined), options={"momentum": 0.9})
    assert with_option.options["momentum"] == 0.9


def test_a_redefined_optimizer_replaces_the_old_one_in_evolution() -> None:
    old, new = (OpenES(pop_size=4, optimizer_name=CustomName(NAME, function)) for function in (_sgd, _redefined))

    assert jnp.allclose(_update_of_mean(old), -1.0)
    assert not jnp.allclose(_update_of_mean(new), -1.0)
