"""Names of optimizers in configs."""

from __future__ import annotations

from typing import Any

import pytest

from evorl.config.nodes import fields_from_config
from evorl.ec import EvoOptimizer
from evorl.ec.evosax import EvosaxStrategy
from evorl.ec.fitness_shaping import raw_fitness
from evorl.ec.gaussian import GaussianStrategy
from evorl.ec.optimizers import OPTIMIZERS, OpenES
from evorl.ec.optimizers.registry import named_optimizer
from evorl.workflows.evolution import EvolutionWorkflow
from tests.support.errors import raises_naming


def _built(**config: Any) -> EvoOptimizer:
    return fields_from_config(EvolutionWorkflow, {"optimizer": config}, "")["optimizer"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_name_is_built(name: str) -> None:
    assert type(_built(name=name, pop_size=8)) is OPTIMIZERS[name]


def test_a_name_by_itself() -> None:
    """A name without settings raises the same error as a mapping with only a name: the population size is missing."""
    with raises_naming(ValueError, "optimizer.pop_size", "missing"):
        fields_from_config(EvolutionWorkflow, {"optimizer": "evosax/CMA_ES"}, "")
    with raises_naming(ValueError, "'cmaess'", "'cmaes'"):
        fields_from_config(EvolutionWorkflow, {"optimizer": "cmaess"}, "")


def test_nested_settings() -> None:
    schedule = {"init": 0.3, "final": 0.1, "decay": 0.9}
    optimizer = _built(name="openes", pop_size=8, lr_schedule=schedule, fitness_shaping_fn="raw")
    assert isinstance(optimizer, OpenES)
    assert (optimizer.lr_schedule.init, optimizer.lr_schedule.decay) == (0.3, 0.9)
    assert optimizer.fitness_shaping_fn is raw_fitness


def test_strategies_of_evosax_and_their_numbers() -> None:
    optimizer = _built(name="evosax/CMA_ES", pop_size=8, initial_std=0.3, params={"c_mean": 0.5})
    assert isinstance(optimizer, EvosaxStrategy)
    assert (optimizer.strategy, optimizer.initial_std, dict(optimizer.params)) == ("CMA_ES", 0.3, {"c_mean": 0.5})


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"name": "open_es"}, ("'open_es'", "'openes'", "evosax/")),
        ({}, ("optimizer", "None")),
        ({"name": "evosax/CMAES"}, ("'CMAES'", "'CMA_ES'")),
        (
            {"name": "openes", "fitness_shaping_fn": "rank"},
            ("optimizer.fitness_shaping_fn", "'rank'", "centered_ranks"),
        ),
        ({"name": "openes", "initial_std": 0.1}, ("optimizer", "'initial_std'")),
        ({"name": "ars", "noise_std": 0.0}, ("optimizer.noise_std", "got 0")),
        (
            {"name": "openes", "lr_schedule": {"init": 0.1, "final": 0.1, "decay": 0}},
            ("decay", "got 0"),
        ),
    ],
)
def test_what_there_is_not_is_refused_in_words(config: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        _built(pop_size=8, **config)


def test_an_optimizer_of_another_kind() -> None:
    with raises_naming(ValueError, "cmaes", "GaussianStrategy", "ars, openes, sepcem"):
        named_optimizer(GaussianStrategy, "cmaes", "member")
