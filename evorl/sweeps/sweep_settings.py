"""Settings of a sweep: a grid or random search over hyperparameters, with optional successive halving."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

import jax
import numpy as np

from evorl.config.names import no_such
from evorl.config.nodes import node_from_config
from evorl.config.search_space import space_entries
from evorl.config.values import check_names, checked_mapping, checked_value, positive
from evorl.fields import Within
from evorl.runs.spec import RunSpec
from evorl.types import PyTreeNode, pytree_field

_OPTIONS = ("over", "draws", "halving", "at_once", "memory")
_BOUNDS = ("low", "high", "scale")


def is_shared(path: str) -> bool:
    """Return True if all runs of a sweep must have the same value of the setting at ``path``."""
    top = path.partition(".")[0]
    return top == "workflow" or top in RunSpec.keys("shared")


class Halving(PyTreeNode):
    """Successive halving (Jamieson and Talwalkar 2016): after each round only the best settings continue.

    Attributes:
        first: environment steps of every setting before the first selection.
        factor: each selection keeps 1/factor of the settings; their environment steps grow by this factor per round.
    """

    first: Annotated[float, Within("(0, inf)")] = pytree_field(static=True)
    factor: int = pytree_field(static=True, default=3)

    def __post_init__(self) -> None:
        if self.factor < 2:
            raise ValueError(f"factor={self.factor} must be at least 2: 1/factor of the settings continue.")

    def rungs(self, total_timesteps: float, interval: int) -> list[float]:
        """Return the steps at which settings are selected, at evaluations every ``interval`` steps, and the total."""
        rungs, at = [], max(self.first, interval)  # before the first evaluation, all rungs would be the same
        while at < total_timesteps and (rung := interval * round(at / interval)) < total_timesteps:
            rungs.append(rung)
            at *= self.factor
        return [*rungs, total_timesteps]

    def num_left(self, num_settings: int) -> int:
        """Return the number of settings that continue after a selection."""
        return max(1, num_settings // self.factor)


@dataclasses.dataclass(frozen=True)
class SweepSettings:
    """Settings of a sweep.

    Attributes:
        over: search space: a list of values, or a range ``{low, high, scale}``, for each dotted path in the config.
        draws: number of settings drawn at random; ``None`` for a grid of all combinations of the lists.
        halving: successive halving; ``None`` trains all settings to the end.
        at_once: maximum number of settings trained in parallel; ``None`` for as many as fit in memory.
        memory: memory limit of the sweep in bytes; ``None`` for 70 % of the machine's memory.
    """

    over: Mapping[str, Any]
    draws: int | None = None
    halving: Halving | None = None
    at_once: int | None = None
    memory: float | None = None

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Parse ``sweep``, a search space or ``over`` with options; raise ``ValueError`` if it is invalid."""
        config, where = checked_mapping(config, "sweep"), "sweep.over"
        if not set(config) & set(_OPTIONS):
            config, where = {"over": config}, "sweep"
        check_names(config, _OPTIONS, "key of sweep")
        over = read_search_space(config.get("over"), where)
        draws = None if config.get("draws") is None else positive(config["draws"], "sweep.draws")
        ranges = [path for path, values in over.items() if isinstance(values, Mapping)]
        if ranges and draws is None:
            raise ValueError(
                f"{where}.{ranges[0]} is a range to sample from: set the number of samples sweep.draws, as in "
                f"sweep={{over: {{{ranges[0]}: {{...}}}}, draws: 30}}."
            )
        halving, memory = config.get("halving"), config.get("memory")
        return cls(
            over=over,
            draws=draws,
            halving=None if halving is None else node_from_config(Halving, halving, "sweep.halving"),
            at_once=None if config.get("at_once") is None else positive(config["at_once"], "sweep.at_once"),
            memory=None if memory is None else checked_value(memory, float, "sweep.memory", "(0, inf)"),
        )

    def settings(self, seed: int) -> list[dict[str, Any]]:
        """Return all settings, each with a value for every path; ``seed`` determines random settings."""
        if self.draws is None:
            combinations = itertools.product(*self.over.values())
            return [dict(zip(self.over, values, strict=True)) for values in combinations]
        shares = np.asarray(jax.random.uniform(jax.random.key(seed), (self.draws, len(self.over))), np.float64)
        return [
            {path: _drawn(values, share) for (path, values), share in zip(self.over.items(), row, strict=True)}
            for row in shares
        ]


def read_search_space(over: Any, where: str) -> dict[str, Any]:
    """Return the search space: a list of values, or a range ``{low, high, scale}``, for each dotted path.

    Args:
        over: mapping with dotted or nested paths.
        where: path of the search space in the config, such as ``sweep.over``, for error messages.

    Raises:
        ValueError: the search space is empty, a key is unknown, or a value is invalid.
    """
    entries = dict(space_entries(checked_mapping(over, where), _BOUNDS))
    if not entries:
        raise ValueError(f"{where} has no values to compare: set, for example, {where}={{discount: [0.9, 0.99]}}.")
    return {path: _checked(f"{where}.{path}", values) for path, values in entries.items()}


def _checked(where: str, values: Any) -> Any:
    if isinstance(values, Mapping):
        check_names(values, _BOUNDS, f"key of {where}")
        if not {"low", "high"} <= set(values):
            raise ValueError(f"{where} must be a list of values, or a range {{low: 0, high: 1}}, got {values}.")
        low, high = (checked_value(values[name], float, f"{where}.{name}") for name in ("low", "high"))
        if isinstance(values["low"], int) and isinstance(values["high"], int):
            low, high = values["low"], values["high"]
        scale = values.get("scale", "linear")
        if scale not in ("linear", "log"):
            raise ValueError(no_such(f"value of {where}.scale", scale, ("linear", "log")))
        if low >= high or (scale == "log" and low <= 0):
            raise ValueError(f"{where}: low={low:g} must be below high={high:g}, and above 0 on a logarithmic scale.")
        return {"low": low, "high": high, "scale": scale}
    if not isinstance(values, list | tuple):
        raise ValueError(f"{where} must be a list of the values to compare, such as [{values}], got {values!r}.")
    values = list(values)
    if not values:
        raise ValueError(f"{where} is an empty list: list the values to compare.")
    if any(values[i] in values[:i] for i in range(1, len(values))):
        raise ValueError(f"{where} contains a value twice: {values}. To repeat a run, use num_seeds.")
    return values


def _drawn(values: Any, share: float) -> Any:
    if isinstance(values, Mapping):
        low, high = values["low"], values["high"]
        value = low * math.exp(share * math.log(high / low)) if values["scale"] == "log" else low + share * (high - low)
        return float(np.float32(value))
    return values[min(int(share * len(values)), len(values) - 1)]
