"""Validation of the record that a worker sends with a push, before the push is applied.

A rejected record leaves the server unchanged. Counts must be integers within the limits of one push, and all other
numbers finite in float32, so that sums over many pushes stay finite.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from evorl.config.values import LARGEST_FLOAT, short_repr
from evorl.execution.trainable import most_timesteps
from evorl.parameter_server.frames import CommandRefused, whole_number
from evorl.types import is_entry_name
from evorl.workflows.workflow import Workflow

MAX_METRICS = 100  # maximum number of metrics of one push
MAX_NAMES = 1000  # maximum number of metric names in a run: each becomes a column of its files
MAX_LENGTHS = 2**53  # maximum sum of the episode lengths of one push
MAX_STEPS = 2**32 - 1  # maximum environment steps of one push, if no workflow determines the limit
SERVER_COLUMNS = ("episodes", "episode_return", "episode_length", "staleness", "workers", "dropped")
_WORKER = re.compile(r"[\w.-]{1,80}", re.ASCII)


@dataclasses.dataclass(frozen=True)
class PushRecord:
    """Validated record of a push.

    Attributes:
        worker: name of the worker.
        sequence: sequence number of the push, counted per worker.
        step: step of the server at the worker's pull.
        updates: update count of the server at the worker's pull.
        steps: number of environment steps that the push covers.
        metrics: metrics of the worker, numbers by name.
        episodes: number of episodes that ended since the last push, and the sums of their returns and lengths.
    """

    worker: str
    sequence: int
    step: int
    updates: int
    steps: int
    metrics: Mapping[str, float]
    episodes: tuple[float, float, float]

    @classmethod
    def from_header(
        cls, header: Mapping[str, Any], max_steps: int = MAX_STEPS, known_names: Collection[str] = ()
    ) -> PushRecord:
        """Validate the header of a push with at most ``max_steps`` environment steps, and return its record.

        Raises:
            CommandRefused: a field is missing, not finite, out of range or has the wrong type; the message names it.
        """
        worker = header.get("worker")
        if not isinstance(worker, str) or not _WORKER.fullmatch(worker):
            raise CommandRefused(
                "worker must be a name of 1 to 80 ASCII letters, digits, dots, hyphens and underscores, "
                f"got {repr(worker)[:80]}."
            )
        sequence, step, updates = (whole_number(header, name) for name in ("sequence", "step", "updates"))
        steps = whole_number(header, "steps")
        if steps > max_steps:
            raise CommandRefused(f"steps must be at most {max_steps} for one push of this training run, got {steps}.")
        metrics = _metrics(header.get("metrics", {}), known_names)
        return cls(worker, sequence, step, updates, steps, metrics, _episodes(header.get("episodes", [0, 0, 0]), steps))


def max_steps_per_push(workflow: Workflow) -> int:
    """Return the maximum number of environment steps in one push of a workflow.

    A push covers its iteration and the preceding iterations without an update: those before ``learning_starts`` and
    before the replay buffer has a complete sequence and, if ``updates_per_iteration`` is below 1, those between two
    updates.
    """
    per_update = math.ceil(1 / min(1.0, getattr(workflow, "updates_per_iteration", 1.0)))
    length = getattr(getattr(workflow, "replay_buffer", None), "length", 0)
    waiting = max(math.ceil(getattr(workflow, "learning_starts", 0)), length * workflow.env.num_envs)
    return waiting + (per_update + 1) * most_timesteps(workflow)


def _metrics(metrics: Any, known_names: Collection[str]) -> dict[str, float]:
    if not isinstance(metrics, dict) or len(metrics) > MAX_METRICS or not all(map(_is_finite, metrics.values())):
        got = short_repr(metrics)
        raise CommandRefused(f"metrics must map at most {MAX_METRICS} names to finite float32 numbers, got {got}.")
    names = [re.sub(r"[^\w./-]", "_", name)[:80] for name in metrics]
    for name, sent in zip(names, metrics, strict=True):
        if not name or not is_entry_name(name) or name in SERVER_COLUMNS or names.count(name) > 1:
            raise CommandRefused(
                "a metric name must not be empty, must not be an attribute of a dict (items) or a metric of the server "
                f"(workers), and must stay unique if unsafe characters are replaced; got {str(sent)[:80]!r}: rename it."
            )
    if len({*known_names, *names}) > MAX_NAMES:
        raise CommandRefused(
            f"a training run records at most {MAX_NAMES} metric names, and {len(known_names)} are in use: "
            "use the same names in every push."
        )
    return dict(zip(names, map(float, metrics.values()), strict=True))


def _episodes(episodes: Any, steps: int) -> tuple[float, float, float]:
    if not isinstance(episodes, list) or len(episodes) != 3 or not all(map(_is_finite, episodes)):
        raise CommandRefused(
            "episodes must be three numbers, finite in float32: the number of episodes, and the sums of their "
            f"returns and lengths; got {short_repr(episodes)}."
        )
    count, returns, lengths = map(float, episodes)
    if count % 1 or not 0 <= count <= steps:
        raise CommandRefused(f"the number of episodes must be an integer from 0 to steps={steps}, got {count:.15g}.")
    if lengths % 1 or not count <= lengths <= (MAX_LENGTHS if count else 0):
        expected = f"an integer from {count:.15g} to 2^53" if count else "0"
        raise CommandRefused(f"the sum of the lengths of {count:.15g} episodes must be {expected}, got {lengths:.15g}.")
    if not count and returns:
        raise CommandRefused(f"the sum of the returns of 0 episodes must be 0, got {returns:g}.")
    return count, returns, lengths


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_FLOAT
