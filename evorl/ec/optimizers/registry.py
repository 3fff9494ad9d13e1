"""How a config names an evolutionary optimizer: ``name: openes`` and its kin, or ``name: evosax/CMA_ES``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evorl.config.names import no_such
from evorl.config.own_parts import is_own_name, own_class, own_name
from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.evosax import EvosaxStrategy
from evorl.ec.optimizers import MULTI_OBJECTIVE_OPTIMIZERS, OPTIMIZERS, MultiObjectiveOptimizer

_EVOSAX = "evosax/"


def named_optimizer(
    cls: type[EvoOptimizer], config: Mapping[str, Any], where: str
) -> tuple[type[EvoOptimizer], dict[str, Any]]:
    """The class of a config's optimizer, ``cls`` or below it, and the settings of its fields.

    Where only optimizers of one class will do, the config need not name it. Those of several objectives are known only
    where several objectives are.

    Raises:
        ValueError: there is no optimizer of this name, or it is of another kind; with the names that there are.
    """
    settings = dict(config)
    name = settings.pop("name", None)
    several = issubclass(cls, MultiObjectiveOptimizer)
    names = MULTI_OBJECTIVE_OPTIMIZERS if several else OPTIMIZERS
    if name is None and cls not in (EvoOptimizer, MultiObjectiveOptimizer):
        chosen = cls
    elif isinstance(name, str) and name.startswith(_EVOSAX) and not several:
        chosen, settings["strategy"] = EvosaxStrategy, name.removeprefix(_EVOSAX)
    elif isinstance(name, str) and is_own_name(name):
        chosen = own_class(name, cls, f"{where}.name")
    elif isinstance(name, str) and name in names:
        chosen = names[name]
    else:
        strategies = () if several else ("evosax/<name of a strategy>",)
        valid = (*names, *strategies, "<package.module:Class of your own>")
        raise ValueError(no_such(f"optimizer for {where}", name, valid))
    if not issubclass(chosen, cls):
        fitting = [name for name, kind in names.items() if issubclass(kind, cls)]
        raise ValueError(f"{where}: {name} is not what is needed here; there are {', '.join(fitting)}.")
    return chosen, settings


def optimizer_name(optimizer: EvoOptimizer) -> str:
    """Return the name by which a config names an optimizer: of one outside the package its module and class."""
    if isinstance(optimizer, EvosaxStrategy):
        return _EVOSAX + optimizer.strategy
    named = {**OPTIMIZERS, **MULTI_OBJECTIVE_OPTIMIZERS}
    return next((name for name, kind in named.items() if kind is type(optimizer)), own_name(type(optimizer)))
