"""Settings of the data that evaluations store: the section ``evaluation`` of a run's config."""

from __future__ import annotations

import dataclasses
from typing import Any

from evorl.config.names import no_such
from evorl.config.values import checked_value, field_types

PLOTS_OF = ("goal", "observation")


@dataclasses.dataclass(frozen=True)
class EvaluationRecords:
    """Settings of the data that evaluations store in addition to metrics.

    Attributes:
        goals: for environments with goals, write the goals of all evaluation episodes to eval_goals.csv; evorl evaluate
            prints a table of the goals reached
        goal_cells: number of cells per goal dimension in the table that evorl evaluate prints
        save_episodes: number of episodes per evaluation to record step by step in the folder episodes; null for none
        plot_episodes: number of episodes per evaluation to plot in the folder plots; null for none
        plot_of: plotted quantity, goal or observation; null for the goal if it is observed, else the observation
        plot_dimensions: indices of one or two components to plot, as in [0, 1]; null for the first two

    Raises:
        ValueError: a value has the wrong type or is out of range.
    """

    goals: bool = False
    goal_cells: int = 3
    save_episodes: int | None = None
    plot_episodes: int | None = None
    plot_of: str | None = None
    plot_dimensions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        hints = field_types(EvaluationRecords)
        for name in ("goals", "goal_cells", "save_episodes", "plot_episodes"):
            object.__setattr__(self, name, checked_value(getattr(self, name), hints[name], f"evaluation.{name}"))
        if self.plot_of is not None and self.plot_of not in PLOTS_OF:
            raise ValueError(no_such("value of evaluation.plot_of", self.plot_of, PLOTS_OF))
        chosen = self.plot_dimensions
        is_list = chosen is None or (isinstance(chosen, list | tuple) and 1 <= len(chosen) <= 2)
        if not is_list or not all(type(i) is int and i >= 0 for i in chosen or ()):
            raise ValueError(f"evaluation.plot_dimensions must be 1 or 2 indices from 0, as in [0, 1]; got {chosen!r}.")

    @property
    def num_steps(self) -> int:
        """Number of episodes whose steps are all stored."""
        return max(self.save_episodes or 0, self.plot_episodes or 0)

    def for_evaluator(self) -> dict[str, Any]:
        """Return the corresponding fields of an ``Evaluator``."""
        return {"keep_goals": self.goals, "keep_steps": self.num_steps}
