"""Custom components named in configs are built, compared by value, trained with, and validated."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from omegaconf import OmegaConf

from evorl.algorithms.neuroevolution import NeuroevolutionWorkflow
from evorl.algorithms.ppo import PPOWorkflow
from evorl.algorithms.td3 import TD3Workflow
from evorl.config.custom_parts import describe_user_error
from evorl.config.names import USER_MODULES
from evorl.config.nodes import completed, node_from_config, plain_value
from evorl.ec.operators.variation import Mutation
from evorl.ec.optimizers import OPTIMIZERS
from evorl.networks.recurrent import GRU, build_cell
from evorl.networks.torsos import build_torso
from evorl.ops.exploration import ActionNoise
from evorl.ops.optimization import Optimizer
from evorl.runs.recorder import Recorder, Row
from evorl.training.preparation import own_recorders
from tests.support.doc_pages import ROOT, blocks
from tests.support.errors import raises_naming

CARTPOLE = {"env": "gymnax/CartPole-v1", "eval_episodes": 2}


def _tabled(x: jax.Array, table: dict) -> jax.Array:
    assert type(table) is dict
    assert table in ({"a": 1.0, "b": ({"c": 2}, 3)}, {"b": ({"c": 2}, 3), "a": 1.0, 5: {}})
    return x * len(table)


@pytest.fixture(scope="module", autouse=True)
def my_parts() -> Any:
    """Execute the module printed on the custom components page."""
    module = types.ModuleType("my_parts")
    sys.modules["my_parts"] = module
    python = [b.text for b in blocks(ROOT / "docs/guide/custom_components.md") if b.language == "python"]
    exec(compile("\n".join(python), "my_parts.py", "exec", dont_inherit=True), vars(module))
    vars(module)["tabled"] = _tabled
    vars(module)["Cell"] = type("Cell", (GRU,), {"__module__": "my_parts"})
    vars(module)["Strong"] = type("Strong", (Mutation,), {"__module__": "my_parts"})
    yield module
    del sys.modules["my_parts"]


def test_a_search_of_ones_own_is_named_and_learns() -> None:
    config = {"name": "my_parts:SimpleES", "pop_size": 32, "initial_std": 0.3}
    settings = {**CARTPOLE, "optimizer": config, "total_timesteps": 64}
    workflow = NeuroevolutionWorkflow.build_from_config(settings)
    again = NeuroevolutionWorkflow.build_from_config(settings)
    assert jax.tree.structure(workflow.optimizer) == jax.tree.structure(again.optimizer)
    assert plain_value(workflow.optimizer)["name"] == "my_parts:SimpleES"
    optimizer = workflow.optimizer
    state = optimizer.init({"x": jnp.ones(3)}, jax.random.key(0))
    tell = jax.jit(optimizer.tell)
    for _ in range(40):
        state = tell(state, -jnp.square(optimizer.ask(state)["x"]).sum(axis=1))
    assert np.square(state.mean["x"]).sum() < 0.5


def test_failures_are_finite_for_a_search_that_does_not_rank_them(my_parts: Any) -> None:
    fitness = jnp.array([1.0, jnp.nan, jnp.inf, 3.0])
    np.testing.assert_array_equal(my_parts.SimpleES(pop_size=4).tellable(fitness), [1.0, 1.0, 1.0, 3.0])
    assert OPTIMIZERS["cmaes"](pop_size=4).tellable(fitness) is fitness


def test_a_workflow_trains_with_layer_activation_and_optimizer() -> None:
    network = {
        "torso": [{"name": "my_parts:Gated", "size": 8}, 8],
        "activation": {"name": "my_parts:snake", "frequency": 2.0},
    }
    optimizer = {"name": "my_parts:slow_sgd", "options": {"momentum": 0.5}}
    settings = {
        **CARTPOLE,
        "num_envs": 4,
        "rollout_length": 8,
        "num_minibatches": 2,
        "num_epochs": 1,
        "total_timesteps": 64,
    }
    workflow = PPOWorkflow.build_from_config({**settings, "agent": {"network": network}, "optimizer": optimizer})
    state = workflow.init(jax.random.key(0))
    before = jax.tree.leaves(state.agent_state.params)
    metrics, state = workflow.step(state)
    assert any((a != b).any() for a, b in zip(before, jax.tree.leaves(state.agent_state.params), strict=True))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.agent_state.params)), metrics


def test_the_functions_are_those_that_are_named(my_parts: Any) -> None:
    torso = build_torso({"torso": ["my_parts:snake"], "activation": "my_parts:snake"})
    x = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
    np.testing.assert_allclose(torso.apply({}, x), my_parts.snake(x), rtol=1e-6)
    assert torso == build_torso({"torso": ["my_parts:snake"], "activation": "my_parts:snake"})
    optimizer = node_from_config(Optimizer, {"name": "my_parts:slow_sgd", "learning_rate": 0.5}, "optimizer")
    params, _ = optimizer.apply({"x": jnp.ones(2)}, optimizer.init({"x": jnp.ones(2)}), {"x": jnp.ones(2)})
    expected, _ = my_parts.slow_sgd(0.5).update({"x": jnp.ones(2)}, my_parts.slow_sgd(0.5).init({"x": jnp.ones(2)}))
    np.testing.assert_allclose(params["x"], optax.apply_updates({"x": jnp.ones(2)}, expected)["x"])
    assert isinstance(build_cell({"name": "my_parts:Cell", "size": 5}), my_parts.Cell)


def test_a_setting_may_be_a_mapping() -> None:
    def part(table: dict) -> dict:
        return {"name": "my_parts:tabled", "table": table}

    table = {"a": 1.0, "b": [{"c": 2}, 3]}
    torso, same, other = (
        build_torso({"torso": [part(each)], "activation": part(each)})
        for each in (table, OmegaConf.create(table), {"b": [{"c": 2}, 3], "a": 1.0, 5: {}})
    )
    assert torso == same != other
    assert hash(torso) == hash(same)
    for each, factor in ((torso, 2), (other, 3)):
        np.testing.assert_array_equal(each.apply({}, jnp.ones((1, 4))), np.full((1, 4), factor))
    network = {"torso": [8], "activation": part(table)}
    settings = {**CARTPOLE, "num_envs": 2, "rollout_length": 4, "total_timesteps": 8, "agent": {"network": network}}
    assert jax.eval_shape(PPOWorkflow.build_from_config(settings).init, jax.random.key(0))


def test_nested_settings_may_be_of_a_class_below_ours(my_parts: Any) -> None:
    noise = node_from_config(ActionNoise, {}, "noise")
    assert type(noise) is ActionNoise
    config = {"agent": {"noise": {"name": "my_parts:UniformNoise", "width": 0.3}}}
    complete = completed(TD3Workflow, config)
    assert complete["agent"]["noise"]["name"] == "my_parts:UniformNoise"
    agent = completed(TD3Workflow, {"agent": {"noise": "my_parts:UniformNoise"}})["agent"]
    assert agent["noise"] == "my_parts:UniformNoise"
    ga = {"name": "ga", "pop_size": 4, "mutation": {"name": "my_parts:Strong", "scale": 0.5}}
    workflow = NeuroevolutionWorkflow.build_from_config({**CARTPOLE, "optimizer": ga})
    assert type(workflow.optimizer.mutation) is my_parts.Strong


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (lambda: build_torso({"torso": [{"name": "my_parts:Gated", "sise": 3}]}), ("my_parts:Gated", "sise", "'size'")),
        (lambda: build_torso({"torso": ["my_parts:Gate"]}), ("my_parts", "'Gate'", "'Gated'")),
        (lambda: build_torso({"activation": {"name": "my_parts:snake", "freq": 1}}), ("'freq'", "frequency")),
        (lambda: build_torso({"torso": ["no_such_module:x"]}), ("no_such_module", "PYTHONPATH")),
        (
            lambda: node_from_config(
                Optimizer, {"name": "my_parts:slow_sgd", "options": {"momentun": 0.1}}, "optimizer"
            ),
            ("'momentun'", "momentum"),
        ),
        (lambda: build_cell({"name": "my_parts:Cell", "sice": 5}), ("'sice'", "'size'")),
        (lambda: build_cell("my_parts:snake"), ("my_parts:snake", "flax", "Module")),
        (lambda: build_cell("my_parts:Gated"), ("my_parts:Gated", "initial_state and inputs", "GRU")),
        (lambda: build_torso({"torso": ["my_parts:UniformNoise"]}), ("my_parts:UniformNoise", "flax", "Module")),
        (lambda: build_torso({"activation": "my_parts:SimpleES"}), ("my_parts:SimpleES", "flax", "Module")),
        (
            lambda: node_from_config(Optimizer, {"name": "my_parts:SimpleES"}, "optimizer"),
            ("my_parts:SimpleES", "gradient optimizer", "learning rate"),
        ),
        (
            lambda: node_from_config(Optimizer, {"name": "my_parts:snake"}, "optimizer").init({"x": jnp.ones(3)}),
            ("my_parts:snake", "must return an optax optimizer"),
        ),
        (
            lambda: own_recorders(OmegaConf.create({"recorders": {"own": ["my_parts:Gated"]}})),
            ("recorders.own=my_parts:Gated", "Recorder"),
        ),
        (
            lambda: own_recorders(OmegaConf.create({"recorders": {"own": [{"size": 3}]}})),
            ("recorders.own", "package.module:function", "None"),
        ),
        (
            lambda: NeuroevolutionWorkflow.build_from_config({**CARTPOLE, "optimizer": "my_parts:Gated"}),
            ("my_parts:Gated", "EvoOptimizer"),
        ),
        (
            lambda: NeuroevolutionWorkflow.build_from_config(
                {**CARTPOLE, "optimizer": {"name": "my_parts:SimpleES", "pop_siz": 4}}
            ),
            ("'pop_siz'", "pop_size"),
        ),
    ],
)
def test_what_does_not_exist_is_refused(build: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        build()


def _raised(function: Any) -> BaseException:
    with pytest.raises((KeyError, TypeError, ValueError)) as raised:
        function()
    return raised.value


def test_an_error_of_own_code_is_told_with_its_module_and_line(my_parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\ndef layer(x):\n    raise KeyError('boo')\n\ndef wrong(x):\n    return x @ x.T.reshape(7)\n"
    exec(compile(text, "their_file.py", "exec", dont_inherit=True), vars(my_parts))
    monkeypatch.setattr("evorl.config.names.USER_MODULES", USER_MODULES | {"my_parts"})
    for name, parts in {"layer": ["KeyError: 'boo'", "line 3"], "wrong": ["TypeError", "line 6"]}.items():
        network = build_torso({"torso": [f"my_parts:{name}"]})
        described = describe_user_error(_raised(lambda network=network: network.init(jax.random.key(0), jnp.ones(3))))
        assert described is not None
        parts = [*parts, "your module my_parts", f"failed in {name}", "their_file.py"]
        assert [part for part in parts if part not in described] == []
    ours = _raised(lambda: build_torso({"torso": ["my_parts:Gate"]}))
    assert describe_user_error(ours) is None


@dataclasses.dataclass
class Kept(Recorder):
    """A recorder whose first field, which evorl passes, is not a setting."""

    folder: Path
    size: int = 3

    def write(self, row: Row) -> None:
        del row


def test_a_recorder_may_be_a_dataclass(tmp_path: Path) -> None:
    def own(**settings: Any) -> Any:
        return own_recorders(OmegaConf.create({"recorders": {"own": [{"name": f"{__name__}:Kept", **settings}]}}))

    (part,) = own(size=4)
    assert part.call(tmp_path) == Kept(tmp_path, 4)
    with raises_naming(ValueError, "recorders.own", "'folder'", "size"):
        own(folder="x")
