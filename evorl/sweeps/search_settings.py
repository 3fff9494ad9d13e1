"""Settings of a search: its search space, its number of trials and its pruner."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from evorl.config.values import check_names, checked_mapping, positive
from evorl.runs.spec import RunSpec
from evorl.sweeps.sweep_settings import read_search_space

PRUNERS = ("none", "median", "hyperband")


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """Settings of a search with Optuna.

    Attributes:
        over: search space: a list of values, or a range ``{low, high, scale}``, for each dotted path in the config.
        trials: number of trials, at least 1.
        pruner: one of ``PRUNERS``, which ends unpromising trials after an evaluation; ``none`` trains all to the end.
    """

    over: Mapping[str, Any]
    trials: int
    pruner: str = PRUNERS[0]

    @classmethod
    def of_run(cls, spec: RunSpec) -> Self:
        """Parse the entry ``search`` of a run's settings; raise ``ValueError`` if the run cannot use it."""
        search = checked_mapping(spec.search, "search")
        check_names(search, [field.name for field in dataclasses.fields(cls)], "key of search")
        if "trials" not in search:
            raise ValueError("search.trials is missing: set the number of trials, such as search.trials=30.")
        pruner = search.get("pruner") or PRUNERS[0]
        check_names([pruner], PRUNERS, "value of search.pruner")
        over = read_search_space(search.get("over"), "search.over")
        settings = cls(over, positive(search["trials"], "search.trials"), pruner)
        interval, total = (float(spec.workflow.get(name) or 0) for name in ("eval_interval", "total_timesteps"))
        if pruner != PRUNERS[0] and interval <= 0:
            raise ValueError(
                f"search.pruner={pruner} compares the evaluations during a trial, but eval_interval={interval:g} "
                "disables them: set eval_interval, or remove the pruner."
            )
        if pruner != PRUNERS[0] and 0 < total < 2 * interval:
            raise ValueError(
                f"search.pruner={pruner} compares the evaluations during a trial, but there would be only one: "
                f"eval_interval={interval:g} is more than half of total_timesteps={total:g}. Decrease eval_interval."
            )
        if pruner != PRUNERS[0] and spec.parameters is not None:
            raise ValueError("search.pruner does not apply to parameter servers: remove search.pruner or parameters.")
        return settings
