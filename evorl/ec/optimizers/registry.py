"""Lookup of evolutionary optimizers by their names in configs, such as ``openes`` or ``evosax/CMA_ES``."""

from __future__ import annotations

from typing import Any

from evorl.config.names import no_such, path_of
from evorl.config.nodes import VARIANTS, Variants
from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.evosax import EvosaxStrategy
from evorl.ec.optimizers import MULTI_OBJECTIVE_OPTIMIZERS, OPTIMIZERS, MultiObjectiveOptimizer

_EVOSAX = "evosax/"


def named_optimizer(cls: type[EvoOptimizer], name: Any, where: str) -> tuple[type[EvoOptimizer], dict[str, Any]]:
    """Return the class of the optimizer with a name, and the settings that the name implies.

    The class is ``cls`` or a subclass. The name is optional if ``cls`` is a concrete optimizer. Multi-objective
    optimizers are valid only if ``cls`` is one. ``where`` is the path of the config, for messages.

    Raises:
        ValueError: the name is missing or unknown, or its class is not a ``cls``; the message lists valid names.
    """
    implied: dict[str, Any] = {}
    is_multi_objective = issubclass(cls, MultiObjectiveOptimizer)
    names = MULTI_OBJECTIVE_OPTIMIZERS if is_multi_objective else OPTIMIZERS
    if name is None and cls not in (EvoOptimizer, MultiObjectiveOptimizer):
        optimizer = cls
    elif isinstance(name, str) and name.startswith(_EVOSAX) and not is_multi_objective:
        optimizer, implied = EvosaxStrategy, {"strategy": name.removeprefix(_EVOSAX)}
    elif isinstance(name, str) and name in names:
        optimizer = names[name]
    else:
        strategies = () if is_multi_objective else ("evosax/<name of a strategy>",)
        valid = (*names, *strategies, "<package.module:Class of your own>")
        raise ValueError(no_such(f"value of {where}.name", name, valid))
    if not issubclass(optimizer, cls):
        alternatives = [name for name, kind in names.items() if issubclass(kind, cls)]
        raise ValueError(f"{where}.name={name} is not a {cls.__name__}: choose {', '.join(alternatives)}.")
    return optimizer, implied


def optimizer_name(optimizer: EvoOptimizer) -> str:
    """Return the config name of an optimizer; for a user-defined one, ``"module:Class"``."""
    if isinstance(optimizer, EvosaxStrategy):
        return _EVOSAX + optimizer.strategy
    named = {**OPTIMIZERS, **MULTI_OBJECTIVE_OPTIMIZERS}
    return next((name for name, kind in named.items() if kind is type(optimizer)), path_of(type(optimizer)))


VARIANTS[EvoOptimizer] = Variants(named_optimizer, optimizer_name)
