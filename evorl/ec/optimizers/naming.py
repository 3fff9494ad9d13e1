"""How a config names an evolutionary optimizer: ``name: openes`` and its kin, or ``name: evosax/CMA_ES``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.evosax import EvosaxStrategy
from evorl.ec.fitness_shaping import fitness_shaping
from evorl.ec.optimizers import OPTIMIZERS
from evorl.suggestions import no_such

_EVOSAX = "evosax/"


def named_optimizer(
    cls: type[EvoOptimizer], config: Mapping[str, Any], where: str
) -> tuple[type[EvoOptimizer], dict[str, Any]]:
    """The class of a config's optimizer, ``cls`` or below it, and the settings of its fields.

    Where only optimizers of one class will do, the config need not name it.

    Raises:
        ValueError: there is no optimizer of this name, or it is of another kind; with the names that there are.
    """
    settings = dict(config)
    name = settings.pop("name", None)
    if name is None and cls is not EvoOptimizer:
        found = cls
    elif isinstance(name, str) and name.startswith(_EVOSAX):
        found, settings["strategy"] = EvosaxStrategy, name.removeprefix(_EVOSAX)
    elif name in OPTIMIZERS:
        found = OPTIMIZERS[name]
    else:
        raise ValueError(no_such(f"optimizer for {where}", name, (*OPTIMIZERS, "evosax/<name of a strategy>")))
    if not issubclass(found, cls):
        names = [name for name, kind in OPTIMIZERS.items() if issubclass(kind, cls)]
        raise ValueError(f"{where}: {name} is not what is needed here; there are {', '.join(names)}.")
    if isinstance(settings.get("fitness_shaping_fn"), str):
        settings["fitness_shaping_fn"] = fitness_shaping(settings["fitness_shaping_fn"])
    return found, settings
