"""Mappings are completed with the fields of the class that they describe."""

from __future__ import annotations

from typing import Any

import pytest

from evorl.config.nodes import completed, completed_node, node_from_config, plain_value
from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.optimizers import OpenES
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.types import PyTreeNode
from tests.support.errors import raises_naming


class Searcher(PyTreeNode):
    """Two optimizers, one with different defaults."""

    size: int
    sizes: tuple[int, ...] = (2, 3)
    rate: float | Schedule = 0.5
    fast: Optimizer = Optimizer()
    slow: Optimizer = Optimizer("sgd", learning_rate=0.1)


def test_what_is_silent_has_the_values_of_the_class() -> None:
    complete = completed(Searcher, {"slow": {"max_grad_norm": 1.0}, "unknown": 7})
    assert "size" not in complete  # it has no default
    assert (complete["sizes"], complete["rate"], complete["unknown"]) == ([2, 3], 0.5, 7)
    assert complete["fast"] == plain_value(Optimizer())
    assert complete["slow"] == plain_value(Optimizer("sgd", learning_rate=0.1)) | {"max_grad_norm": 1.0}


@pytest.mark.parametrize("config", [{"size": 4}, {"size": 4, "fast": {"learning_rate": {"start": 1.0, "end": 0.0}}}])
def test_completed_twice_is_completed_once_and_builds_the_same_node(config: dict[str, Any]) -> None:
    complete = completed(Searcher, config)
    assert completed(Searcher, complete) == complete
    assert repr(node_from_config(Searcher, complete, "")) == repr(node_from_config(Searcher, config, ""))


def test_a_part_of_another_kind_has_the_values_of_its_own_class() -> None:
    usual = OpenES(pop_size=8, mirror_sampling=False)
    same = completed_node(EvoOptimizer, {"name": "openes", "pop_size": 6}, usual, "optimizer")
    assert (same["name"], same["pop_size"], same["mirror_sampling"]) == ("openes", 6, False)
    other = completed_node(EvoOptimizer, {"name": "cmaes", "pop_size": 6}, usual, "optimizer")
    assert other["name"] == "cmaes"
    assert "mirror_sampling" not in other
    with raises_naming(ValueError, "optimizer", "'cmaess'", "'cmaes'"):
        completed_node(EvoOptimizer, {"name": "cmaess"}, usual, "optimizer")
