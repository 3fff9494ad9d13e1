"""Execution of a sweep: trains its parts sequentially, selects settings between rounds, and reads the results."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.execution import programs
from evorl.execution.intervals import every
from evorl.execution.seeds import rows_of_seeds
from evorl.ops.terminal_text import counted
from evorl.recorders.row_file import RowFile
from evorl.runs.recorder import Recorder
from evorl.sweeps.capacity import evenly, settings_at_once
from evorl.sweeps.grouping import Group
from evorl.sweeps.part import Part, joined_states
from evorl.sweeps.sweep_settings import Halving, SweepSettings
from evorl.sweeps.sweep_table import RETURN, Evaluations, Returns
from evorl.types import State
from evorl.workflows.side_by_side import SideBySideWorkflow

FEW_ROWS = 16  # up to this number of rows, a program takes about as long as with a single row
_AT_ONCE = "at_once.csv"
MAX_IDLE = 7  # maximum number of padding settings, added so that all devices have the same number of rows


@dataclasses.dataclass
class SweepRun:
    """A sweep in a folder; after a stop, another call of ``train`` resumes it.

    Attributes:
        folder: folder of the parts.
        settings: settings of the sweep.
        groups: groups of the settings to compare; each group shares a program.
        num_seeds: number of seeds of each setting.
        seed: seed of the sweep.
        devices: number of devices over which the rows are distributed, or ``"auto"``.
        message: callback for progress messages.
        checkpoint_seconds: time since the last checkpoint of a part after which another one is saved; 0 disables this.
    """

    folder: Path
    settings: SweepSettings
    groups: Sequence[Group]
    num_seeds: int
    seed: int
    devices: str | int
    message: Callable[[str], None]
    checkpoint_seconds: float = 0.0

    @property
    def num_settings(self) -> int:
        """Number of settings."""
        return sum(len(group.members) for group in self.groups)

    @functools.cached_property
    def at_once(self) -> tuple[int, ...]:
        """Number of settings of each group that are trained in parallel; a resumed sweep reads it from ``at_once.csv``.

        It is stored because it depends on the machine's memory, and the folders of the parts depend on it.

        Raises:
            RunFolderError: the file is corrupted.
        """
        file = RowFile(self.folder / _AT_ONCE)
        stored = file.lines()
        if not stored or self.settings.at_once is not None:
            computed = tuple(map(self._at_once, self.groups))
            if not stored:
                return computed
            if list(map(str, computed)) != stored:
                self.message(
                    f"sweep.at_once={self.settings.at_once} has no effect on a resumed sweep: its parts still have "
                    f"{', '.join(stored)} settings."
                )
        most = [len(group.members) + MAX_IDLE for group in self.groups]
        if len(stored) != len(most) or any(x not in map(str, range(1, n + 1)) for x, n in zip(stored, most)):
            raise file.damaged(f"expected {len(most)} lines, each with an integer from 1 to {max(most)}")
        return tuple(map(int, stored))

    def _for_all_devices(self, group: Group, count: int, limit: float) -> int:
        """Return ``count``, or more up to ``limit`` if only then several devices can share the rows evenly."""
        is_alone = count * self.num_seeds == 1 or not group.workflow.timesteps_per_iteration
        for more in range(1 if is_alone else int(min(MAX_IDLE, limit - count)) + 1):
            repeated = [min(index, len(group.members) - 1) for index in range(count + more)]
            if self.rows(group, repeated).execution.num_devices > 1:
                return count + more
        return count

    def _at_once(self, group: Group) -> int:
        num_settings = len(group.members)
        if not group.workflow.timesteps_per_iteration:  # steps are counted over all rows, which would share the total
            return 1
        if self.settings.halving is not None:  # about the size of the last round, so that it has few padding rows
            rounds = len(rungs_of(group, self.settings.halving)) - 1
            of_the_last = num_settings // self.settings.halving.factor**rounds
            num_settings = min(num_settings, max(of_the_last, math.ceil(FEW_ROWS / self.num_seeds)))
        if (limit := self.settings.at_once) is None:
            count, limit = settings_at_once(lambda n: self.rows(group, range(n)), num_settings, self.settings.memory)
        elif (count := evenly(num_settings, limit)) == len(group.members):
            limit = math.inf  # all settings are in one part: additional rows are only padding
        return self._for_all_devices(group, count, limit)

    def rows(self, group: Group, indices: Sequence[int]) -> SideBySideWorkflow:
        """Return the workflow of the settings at these positions in a group, with a row per setting and seed."""
        seeds = np.tile(np.arange(self.num_seeds), len(indices))
        numbers = np.asarray(group.numbers, np.float32).reshape(len(group.members), len(group.paths))
        of_rows = np.repeat(numbers[np.asarray(indices)], self.num_seeds, axis=0)
        return SideBySideWorkflow.of(group.workflow, group.paths, of_rows, seeds, self.devices)

    def parts(self, rung: int, left: Sequence[int]) -> list[Part]:
        """Return the parts of round number ``rung``, from 0, for the remaining settings ``left``."""
        parts, message = [], functools.cache(self.message)  # once for all settings of a part
        for number, (group, at_once) in enumerate(zip(self.groups, self.at_once, strict=True)):
            indices = [index for index, member in enumerate(group.members) if member in set(left)]
            for first in range(0, len(indices), at_once):
                of_part = indices[first : first + at_once]
                filled = of_part + of_part[-1:] * (at_once - len(of_part))
                folder = self.folder / f"round_{rung}" / f"group_{number}_part_{first // at_once}"
                members = tuple(group.members[index] for index in of_part)
                end = rungs_of(group, self.settings.halving)[: rung + 1][-1]
                rows = self.rows(group, filled)
                parts.append(Part(folder, members, rows, self.num_seeds, end, self.checkpoint_seconds, message))
        return parts

    def train(self, recorders: Callable[[Part], Sequence[Recorder]], should_stop: Callable[[], bool]) -> bool:
        """Train all unfinished parts; return True if the sweep is finished.

        Args:
            recorders: creates the recorders of a part.
            should_stop: polled between chunks of iterations; True saves a checkpoint and stops.
        """
        RowFile(self.folder / _AT_ONCE).replace(map(str, self.at_once))
        num_rounds = max(len(rungs_of(group, self.settings.halving)) for group in self.groups)
        seeds = f" with {self.num_seeds} seeds each" if self.num_seeds > 1 else ""
        left, rounds = list(range(self.num_settings)), []
        for rung in range(num_rounds):
            parts, before = self.parts(rung, left), rounds[-1] if rounds else []
            of_round = f" of round {rung + 1} of {num_rounds}" if num_rounds > 1 else ""
            for number, part in enumerate(parts, start=1):
                if part.is_finished:
                    continue
                settings = counted(len(part.members), "setting")
                settings += f"{seeds}{', in parallel' if len(part.members) > 1 else ''}"
                self.message(f"Part {number} of {len(parts)}{of_round}: {settings}.")
                part.train(self.seed, functools.partial(self._start, part, before), recorders(part), should_stop)
                if not part.is_finished:
                    return False
            rounds.append(parts)
            if rung < num_rounds - 1:
                left = self._going_on(rounds)
                self.message(f"{len(left)} of {self.num_settings} settings continue.")
        return True

    def _start(self, part: Part, before: Sequence[Part]) -> State | None:
        """Return the initial state of a part, from the states of the previous round; ``None`` in the first round."""
        if not before:
            return None
        where = {member: earlier for earlier in before for member in earlier.members}
        states = [where[member].restore(member)[0] for member in part.members]
        state = joined_states(states, len(part.workflow.seeds))
        return programs.place(part.workflow, jax.tree.map(jax.numpy.asarray, state))

    def rounds(self) -> list[list[Part]]:
        """Return the parts of every started round."""
        rounds: list[list[Part]] = []
        left = list(range(self.num_settings))
        while any(part.folder.exists() for part in self.parts(len(rounds), left)):
            rounds.append(self.parts(len(rounds), left))
            if self.settings.halving is None or not all(part.is_finished for part in rounds[-1]):
                break
            left = self._going_on(rounds)
        return rounds

    def _going_on(self, rounds: Sequence[Sequence[Part]]) -> list[int]:
        assert self.settings.halving is not None, "without it there is one round"
        num_left = self.settings.halving.num_left(sum(len(part.members) for part in rounds[-1]))
        return sorted(ranked(returns_of(merged_evaluations(rounds)), last_rounds(rounds))[:num_left])

    def evaluations(self) -> Evaluations:
        """Return all evaluations, ``{setting: {timesteps: {metric: values}}}``, with one value per seed."""
        return {member: {} for member in range(self.num_settings)} | merged_evaluations(self.rounds())

    def final_state(self, member: int) -> tuple[State, dict[str, Any]]:
        """Return a setting's final state, structured as the state of a separate run, and the stored progress."""
        part = [part for part in itertools.chain.from_iterable(self.rounds()) if member in part.members][-1]
        state, progress = part.restore(member)
        del state["numbers"]
        if self.num_seeds == 1:
            state = rows_of_seeds(state, 0)
        return state, progress


def merged_evaluations(rounds: Sequence[Sequence[Part]]) -> dict[int, dict[int, dict[str, list[float]]]]:
    """Merge the evaluations of all parts, see ``Part.evaluations``."""
    evaluations: dict[int, dict[int, dict[str, list[float]]]] = {}
    for part in itertools.chain.from_iterable(rounds):
        for member, of_member in part.evaluations().items():
            evaluations.setdefault(member, {}).update(of_member)
    return evaluations


def returns_of(evaluations: Evaluations) -> dict[int, dict[int, Sequence[float]]]:
    """Select the returns, one value per seed, from evaluations by setting and environment steps."""
    return {
        member: {timesteps: metrics[RETURN] for timesteps, metrics in of_member.items()}
        for member, of_member in evaluations.items()
    }


def last_rounds(rounds: Sequence[Sequence[Part]]) -> dict[int, int]:
    """Return the number of the last round in which each setting took part."""
    return {member: number for number, parts in enumerate(rounds) for part in parts for member in part.members}


def ranked(returns: Returns, rounds: Mapping[int, int]) -> list[int]:
    """Sort the settings of ``last_rounds``, best first: by their last round, then by the score of the last evaluation.

    The environment steps of evaluations do not count: each program rounds them to its own iterations.
    """
    return sorted(rounds, key=lambda member: (-rounds[member], not returns[member], -last_score(returns[member])))


def rungs_of(group: Group, halving: Halving | None) -> list[float]:
    """Return the environment steps at which the rounds of a group end: evaluations, and the end of training."""
    workflow = group.workflow
    steps, total = workflow.timesteps_per_iteration, workflow.total_timesteps
    evaluations = every(workflow.eval_interval, steps, rows=every(workflow.log_interval, steps))
    if halving is None or evaluations is None:
        return [total]
    last = max(1, int(total) // steps) * steps if steps else total  # training ends there
    return [*halving.rungs(last, evaluations.number * (steps or 1))[:-1], total]


def check_halving(group: Group, halving: Halving) -> None:
    """Raise ``ValueError`` if ``halving.first`` is less than ``eval_interval``, or too late for a selection."""
    interval, total = group.workflow.eval_interval, group.workflow.total_timesteps
    if halving.first < interval or len(rungs_of(group, halving)) == 1:
        raise ValueError(
            f"sweep.halving.first={halving.first:g} must be at least eval_interval={interval:,.0f}, because settings "
            f"are selected at evaluations, and at least one interval below total_timesteps={total:,.0f}: choose a "
            "value between them, or a smaller eval_interval."
        )


def last_score(of_setting: Mapping[int, Sequence[float]]) -> float:
    """Return the mean return over seeds in the last evaluation; minus infinity if it is missing or not finite."""
    if not of_setting:
        return -math.inf
    score = float(np.mean(of_setting[max(of_setting)]))
    return score if math.isfinite(score) else -math.inf
