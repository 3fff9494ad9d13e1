"""A gradient tap replaces only the optimizer step, and its state is the gradient."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.gradient_tap import (
    GradientTap,
    TappedGradient,
    optimizers_of,
    owned_by_optimizers,
    tapped,
    taps_in,
    with_fresh_taps,
)
from evorl.ops.optimization import Optimizer, gradient_step
from tests.support.small_workflows import assert_close, assert_identical, small

PARAMS = {"w": jnp.asarray([1.0, -2.0]), "b": jnp.asarray(0.5)}


def _loss(params: dict, scale: float) -> tuple[jax.Array, None]:
    return scale * (jnp.square(params["w"]).sum() + 3.0 * params["b"]), None


def test_it_leaves_the_parameters_and_adds_up_gradients() -> None:
    tap = GradientTap()
    params, state, _ = gradient_step(_loss, tap, PARAMS, tap.init(PARAMS), 1.0)
    params, state, _ = gradient_step(_loss, tap, params, state, 10.0)
    assert_identical(params, PARAMS)
    assert int(state.count) == 2
    np.testing.assert_allclose(state.gradient["w"], [22.0, -44.0])
    np.testing.assert_allclose(state.gradient["b"], 33.0)


def test_it_does_not_clip() -> None:
    tap = tapped(Optimizer(max_grad_norm=1e-3))
    _, state, _ = gradient_step(_loss, tap, PARAMS, tap.init(PARAMS), 1.0)
    np.testing.assert_allclose(state.gradient["b"], 3.0)


def test_a_state_begins_anew() -> None:
    held = {"opt": TappedGradient(PARAMS, jnp.asarray(3)), "num_updates": jnp.asarray(7)}
    fresh = with_fresh_taps(held)
    (tap,) = taps_in(fresh)
    assert int(tap.count) == 0
    assert_identical(tap.gradient, jax.tree.map(jnp.zeros_like, PARAMS))
    assert int(fresh["num_updates"]) == 7
    assert int(held["opt"].count) == 3, "the state that was given is as it was"


def test_an_update_becomes_the_gradient_of_its_batch() -> None:
    """The tap's state equals the step of plain SGD with rate 1."""
    workflow = small("a2c", optimizer={"name": "sgd", "learning_rate": 1.0, "max_grad_norm": None})
    state = workflow.init(0)
    batch, state = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    update = jax.jit(lambda w, s, b: w.update(s, b)[1])
    after = update(workflow, state, batch)

    tap: Any = tapped(workflow)
    opt_state = tap.init_optimizers(state.agent_state)
    tapped_after = update(tap, state.replace(opt_state=opt_state), batch)
    assert_identical(tapped_after.agent_state.params, state.agent_state.params)
    assert_identical(tapped_after.key, after.key)
    step = jax.tree.map(jnp.subtract, state.agent_state.params, after.agent_state.params)
    assert_close(taps_in(tapped_after.opt_state)[0].gradient, step, 2e-6)


@pytest.mark.parametrize(
    ("algorithm", "env", "fields"),
    [
        ("ppo", "CartPole-v1", {"optimizer"}),
        ("dqn", "CartPole-v1", {"optimizer"}),
        ("sac", "Pendulum-v1", {"actor_optimizer", "critic_optimizer", "temperature_optimizer"}),
        ("td3", "Pendulum-v1", {"actor_optimizer", "critic_optimizer"}),
    ],
)
def test_every_optimizer_of_a_workflow_is_replaced(algorithm: str, env: str, fields: set[str]) -> None:
    workflow = small(algorithm, env)
    assert optimizers_of(workflow).keys() == fields
    assert all(type(x) is GradientTap for x in optimizers_of(tapped(workflow)).values())
    assert all(type(x) is Optimizer for x in optimizers_of(workflow).values())


def _owned(algorithm: str, env: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the names of parameters per optimizer, and of all parameters."""
    workflow = small(algorithm, env)
    agent_state = jax.eval_shape(lambda key: workflow.setup(key).agent_state, jax.random.key(0))
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(agent_state.params)]
    owned = owned_by_optimizers(workflow, agent_state)
    return {name: [names[i] for i in jax.tree.leaves(tree)] for name, tree in owned.items()}, names


def test_target_networks_belong_to_no_optimizer() -> None:
    owned, names = _owned("dqn", "CartPole-v1")
    assert owned == {"optimizer": [name for name in names if "online" in name]}
    assert any("target" in name for name in names)


def test_one_optimizer_of_several_networks_is_told_apart() -> None:
    """DisCor's critic optimizer is attributed to the critics and, with a separate state, to the error networks."""
    owned, _ = _owned("discor", "Pendulum-v1")
    assert {"critic_optimizer", "critic_optimizer:2", "actor_optimizer"} < owned.keys()
    groups = [set(names) for names in owned.values()]
    assert sum(map(len, groups)) == len(set.union(*groups)), "no parameter has two optimizers"


def test_an_optimizer_without_a_lasting_state_owns_nothing() -> None:
    owned, _ = _owned("trpo", "CartPole-v1")
    assert "policy_optimizer" not in owned
