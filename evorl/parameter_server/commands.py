"""The five commands of a parameter server: pull, push, checkpoint, n_step and config.

Commands run one at a time. Each push carries the name of its worker and an increasing sequence number. A repeated push
is not applied again: its response contains the earlier result and the current progress. The sequence numbers are saved
with the parameters, so this also holds after a restart of the server.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.live.spans import Spans
from evorl.parameter_server.flat_arrays import FlatArrays
from evorl.parameter_server.frames import CommandRefused
from evorl.parameter_server.push_record import MAX_STEPS, PushRecord
from evorl.parameter_server.update_rules import ParameterServerSettings, ParameterServerState, push
from evorl.parameter_server.wire import Command
from evorl.types import Params

MAX_WORKERS = 4096  # maximum number of workers whose last push is stored; the oldest push is evicted first
MAX_SENT = 1e15  # largest absolute value in a push: its square, which optimizers sum, is finite in float32
_RECENT = 100  # the score and the number of workers cover this many of the latest pushes


@dataclasses.dataclass(frozen=True)
class Pushed:
    """A processed push.

    Attributes:
        worker: name of the worker.
        accepted: false if the push was dropped: outdated in mode averaging, or after the end of training.
        staleness: number of updates of the parameters since the worker's pull.
        before: step of the server before the push.
        step: step of the server after the push.
        metrics: metrics of the worker, numbers by name.
        episodes: number of episodes that ended since the worker's last push, and the sums of their returns and lengths.
    """

    worker: str
    accepted: bool
    staleness: int
    before: int
    step: int
    metrics: Mapping[str, float]
    episodes: tuple[float, float, float]


class ParameterCommands:
    """State of a parameter server, and the commands that read and change it.

    Args:
        settings: settings of the server, such as how pushes are combined.
        state: initial state; its buffers are donated.
        rest: agent arrays that no optimizer updates, sent to workers that join.
        total_steps: number of environment steps of applied pushes after which training ends.
        after_push: called with every push, accepted or dropped, before its response is sent; not for a repetition.
        save: writes a checkpoint and returns the number of pushes that it contains; ``None`` rejects the command.
        max_steps: maximum number of environment steps of one push, see ``max_steps_per_push``.

    Raises:
        TypeError: a parameter is not float32, or an array of ``rest`` cannot be sent, see ``FlatArrays``.

    Attributes:
        state: current state.
        rest: agent arrays that no optimizer updates, from the last accepted push.
        pushes: number of accepted pushes.
        ending: set to True to end training early.
        worker_config: config that workers may request; ``None`` to reject such requests.
    """

    def __init__(
        self,
        settings: ParameterServerSettings,
        state: ParameterServerState,
        rest: Sequence[Any] = (),
        *,
        total_steps: float = math.inf,
        after_push: Callable[[Pushed], None] = lambda _: None,
        save: Callable[[], int] | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.settings, self.state, self.rest = settings, state, [np.asarray(x) for x in rest]
        self.pushes, self.ending = 0, False
        self.worker_config: Mapping[str, Any] | None = None
        self.layout, self.rest_layout = FlatArrays(state.params), FlatArrays(list(rest))
        if wrong := {str(x.dtype) for x in jax.tree.leaves(state.params)} - {"float32"}:
            raise TypeError(f"parameters must be float32, got {', '.join(sorted(wrong))}.")
        self._total_steps, self._after_push, self._save = total_steps, after_push, save
        self._max_steps, self._names = max_steps, set()
        self._step, self._updates = int(state.step), int(state.updates)
        self._answers: collections.OrderedDict[str, tuple[int, dict[str, Any]]] = collections.OrderedDict()
        self._recent: collections.deque[Pushed] = collections.deque(maxlen=_RECENT)
        self._parameters: bytes | None = None

    def table(self, spans: Spans | None = None) -> dict[str, Command]:
        """Return the commands by name; ``spans`` profiles pulls and pushes, ``None`` disables profiling."""
        num_bytes = self.layout.num_bytes + self.rest_layout.num_bytes
        spans = spans or Spans(None)
        return {
            "pull": Command(spans.instrumented(self.pull)),
            "push": Command(spans.instrumented(self.push), num_bytes),
            "checkpoint": Command(self.checkpoint),
            "n_step": Command(self.n_step),
            "config": Command(self.config),
        }

    @property
    def step(self) -> int:
        """Number of environment steps of the applied pushes; in mode averaging, accepted pushes may be pending."""
        return self._step

    @property
    def is_over(self) -> bool:
        """True if ``step`` has reached ``total_steps``, or ``ending`` is set."""
        return self.ending or self._step >= self._total_steps

    def parameters(self) -> Params:
        """Return the current parameters as NumPy arrays."""
        return self.layout.from_bytes(self._flat())

    def pull(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the progress and the parameters; ``rest: true`` in the header appends the arrays of ``self.rest``."""
        rest = self.rest_layout.to_bytes(self.rest) if header.get("rest") is True else b""
        return self._progress(), self._flat() + rest

    def n_step(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return progress, accepted ``pushes``, recent ``workers`` and mean return (``score``), and worker settings."""
        ended = sum(x.episodes[0] for x in self._recent)
        return self._progress() | {
            "pushes": self.pushes,
            "workers": len({x.worker for x in self._recent}),
            "score": sum(x.episodes[1] for x in self._recent) / ended if ended else None,
            "send": self.settings.send,
            "total_timesteps": float(self.settings.total_timesteps),
            "parameters": self.layout.digest,
            "rest": self.rest_layout.digest,
        }, b""

    def checkpoint(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Save a checkpoint and return its number of pushes, ``saved``; raise ``CommandRefused`` without ``save``."""
        if self._save is None:
            raise CommandRefused("this server saves no checkpoints: it was started without a checkpointer.")
        return self._progress() | {"saved": self._save()}, b""

    def config(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the config of the training run as JSON in the body; raise ``CommandRefused`` without a config."""
        if self.worker_config is None:
            raise CommandRefused("this server sends no config: start workers from Python, with the server's workflow.")
        return self._progress(), json.dumps(self.worker_config).encode()

    def push(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Apply a push unless it is repeated or dropped; return the response. Raise ``CommandRefused`` if invalid."""
        record = PushRecord.from_header(header, self._max_steps, self._names)
        last, answer = self._answers.get(record.worker, (-1, {}))
        if record.sequence <= last:
            return answer | self._progress() | {"repeated": True}, b""
        before, staleness = self._step, max(0, self._updates - record.updates)
        accepted = not self.is_over and self._apply(body, record.steps, record.step)
        self._refresh()
        answer = {"accepted": accepted, "repeated": False}
        self._answers[record.worker] = record.sequence, answer
        self._answers.move_to_end(record.worker)
        if len(self._answers) > MAX_WORKERS:
            self._answers.popitem(last=False)
        self._names.update(record.metrics)
        pushed = Pushed(record.worker, accepted, staleness, before, self._step, record.metrics, record.episodes)
        self._recent.append(pushed)
        self._after_push(pushed)
        return answer | self._progress(), b""

    def _apply(self, body: bytes, steps: int, worker_step: int) -> bool:
        """Apply a push; return True if it was accepted."""
        whole = self.layout.num_bytes + self.rest_layout.num_bytes
        if len(body) != whole:
            raise CommandRefused(f"the body of a push must have {whole:,} bytes, got {len(body):,}.")
        sent = memoryview(body)[: self.layout.num_bytes]
        if not (np.abs(np.frombuffer(sent, np.float32)) <= MAX_SENT).all():
            raise CommandRefused(
                f"this {self.settings.send} contains NaN, infinity or magnitudes above {MAX_SENT:g} and was not "
                "applied: try a smaller learning rate."
            )
        rest = self.rest_layout.from_bytes(memoryview(body)[self.layout.num_bytes :])
        if not all(_stays_finite(old, new) for old, new in zip(self.rest, rest, strict=True)):
            raise CommandRefused(
                "the target networks or statistics of this push contain NaN or infinity, so it was not "
                "applied: check the observations of this worker."
            )
        on_device = jax.tree.map(jnp.asarray, self.layout.from_bytes(sent))
        self.state, accepted = push(self.settings, self.state, on_device, steps, worker_step)
        if accepted:
            self.pushes += 1
            self.rest = rest
        return accepted

    def _refresh(self) -> None:
        self._step, updates = int(self.state.step), int(self.state.updates)
        if updates != self._updates:
            self._updates, self._parameters = updates, None

    def _progress(self) -> dict[str, Any]:
        return {"step": self._step, "updates": self._updates, "stop": self.is_over}

    def _flat(self) -> bytes:
        if self._parameters is None:
            self._parameters = self.layout.to_bytes(self.state.params)
        return self._parameters

    def to_json(self) -> dict[str, Any]:
        """Return the number of pushes and the last response to each worker, for a checkpoint."""
        return {"pushes": self.pushes, "answers": {name: [n, answer] for name, (n, answer) in self._answers.items()}}

    def go_on(self, stored: Mapping[str, Any]) -> None:
        """Restore the state that ``to_json`` returned."""
        self.pushes = int(stored["pushes"])
        self._answers.update({name: (int(n), dict(answer)) for name, (n, answer) in stored["answers"].items()})


def _stays_finite(old: np.ndarray, new: np.ndarray) -> bool:
    """Return True if every element that was finite in ``old`` is finite in ``new``."""
    if new.dtype.kind != "f":
        return True
    return bool((np.isfinite(new) | ~np.isfinite(old)).all())
