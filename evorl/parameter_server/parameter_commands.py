"""The five commands of a parameter server: pull, push, checkpoint, n_step and config.

They are called one at a time. Each push carries its worker's name and a number that grows: one that came before is
answered as it was then, and not applied again. The numbers are saved with the parameters, so this holds across a
restart of the server, too.
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
from evorl.parameter_server.parameter_frames import CommandRefused
from evorl.parameter_server.parameter_wire import Command
from evorl.parameter_server.push_record import MAX_STEPS, PushRecord
from evorl.types import Params
from evorl.workflows.parameter_server import ParameterServerSettings, ParameterServerState, push

MAX_WORKERS = 4096  # that are remembered; the one that was silent longest is forgotten first
MAX_SENT = 1e15  # of a gradient or delta: its square, which optimizers sum, is finite in float32
_RECENT = 100  # pushes that the score is of


@dataclasses.dataclass(frozen=True)
class Pushed:
    """A push, as recorders of the training receive it.

    Attributes:
        worker: its name.
        accepted: whether it counts.
        staleness: updates since its worker had pulled.
        before: the server's step before it.
        step: and after it.
        metrics: numbers by name.
        episodes: of the iteration: how many ended, and the sums of their returns and lengths.
    """

    worker: str
    accepted: bool
    staleness: int
    before: int
    step: int
    metrics: Mapping[str, float]
    episodes: tuple[float, float, float]


class ParameterCommands:
    """Commands of a parameter server, with their answers.

    Args:
        settings: how pushes are combined.
        state: to begin with; its memory is taken.
        rest: what of an agent no optimizer steps, for workers that join.
        total_steps: the training ends when so many environment steps took effect.
        after_push: is told of every push that was not a repetition, before it is answered.
        save: writes a checkpoint, and returns how many pushes are in it.
        max_steps: environment steps that one push can stand for, see ``max_steps_per_push``.

    Raises:
        TypeError: parameters are no float32.

    Attributes:
        state: as it is now.
        rest: of the worker that pushed last.
        pushes: how many were accepted.
        ending: whether workers are told to end.
        handed_out: the config that workers may ask for; ``None`` where there is none to give.
    """

    def __init__(
        self,
        settings: ParameterServerSettings,
        state: ParameterServerState,
        rest: Sequence[Any] = (),
        total_steps: float = math.inf,
        after_push: Callable[[Pushed], None] = lambda _: None,
        save: Callable[[], int] | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.settings, self.state, self.rest = settings, state, [np.asarray(x) for x in rest]
        self.pushes, self.ending = 0, False
        self.handed_out: Mapping[str, Any] | None = None
        self.layout, self.rest_layout = FlatArrays(state.params), FlatArrays(list(rest))
        if wrong := {str(x.dtype) for x in jax.tree.leaves(state.params)} - {"float32"}:
            raise TypeError(
                f"a parameter server keeps float32, and these parameters are of {', '.join(sorted(wrong))}."
            )
        self._total_steps, self._after_push, self._save = total_steps, after_push, save
        self._max_steps, self._names = max_steps, set()
        self._step, self._updates = int(state.step), int(state.updates)
        self._answers: collections.OrderedDict[str, tuple[int, dict[str, Any]]] = collections.OrderedDict()
        self._recent: collections.deque[Pushed] = collections.deque(maxlen=_RECENT)
        self._parameters: bytes | None = None

    def table(self, spans: Spans | None = None) -> dict[str, Command]:
        """The commands by name, of which pulls and pushes are measured: nothing else can be called."""
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
        """Environment steps of the pushes that took effect."""
        return self._step

    @property
    def is_over(self) -> bool:
        """Return whether all steps were taken, or workers were told to end."""
        return self.ending or self._step >= self._total_steps

    def parameters(self) -> Params:
        """The present parameters, on the host."""
        return self.layout.from_bytes(self._flat())

    def pull(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """The parameters, and with ``rest`` in the header what else a new worker begins with."""
        rest = self.rest_layout.to_bytes(self.rest) if header.get("rest") is True else b""
        return self._standing(), self._flat() + rest

    def n_step(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the state of the server, and what it expects of workers."""
        ended = sum(x.episodes[0] for x in self._recent)
        return self._standing() | {
            "pushes": self.pushes,
            "workers": len({x.worker for x in self._recent}),
            "score": sum(x.episodes[1] for x in self._recent) / ended if ended else None,
            "send": self.settings.send,
            "total_timesteps": float(self.settings.total_timesteps),
            "parameters": self.layout.digest,
            "rest": self.rest_layout.digest,
        }, b""

    def checkpoint(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Save now."""
        if self._save is None:
            raise CommandRefused("this server saves no checkpoints: it was started without a place for them.")
        return self._standing() | {"saved": self._save()}, b""

    def config(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """The config of the training as JSON, behind the header."""
        if self.handed_out is None:
            raise CommandRefused("this server has no config to hand out: it was started from Python, by a workflow.")
        return self._standing(), json.dumps(self.handed_out).encode()

    def push(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Combine a gradient or a delta with the parameters, once."""
        record = PushRecord.from_header(header, self._max_steps, self._names)
        last, answer = self._answers.get(record.worker, (-1, {}))
        if record.sequence <= last:
            return answer | self._standing() | {"repeated": True}, b""
        before, staleness = self._step, max(0, self._updates - record.updates)
        accepted = not self.is_over and self._applied(body, record.steps, record.step)
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
        return answer | self._standing(), b""

    def _applied(self, body: bytes, steps: int, worker_step: int) -> bool:
        """Return whether the push counts; then it has been applied."""
        whole = self.layout.num_bytes + self.rest_layout.num_bytes
        if len(body) != whole:
            raise CommandRefused(f"a push has {whole:,} bytes behind its header here, and this one {len(body):,}.")
        sent = memoryview(body)[: self.layout.num_bytes]
        if not (np.abs(np.frombuffer(sent, np.float32)) <= MAX_SENT).all():
            raise CommandRefused(
                f"this {self.settings.send} has NaN or infinite numbers, or such beyond {MAX_SENT:g}, and was not "
                "applied: try a smaller learning rate."
            )
        rest = self.rest_layout.from_bytes(memoryview(body)[self.layout.num_bytes :])
        if not all(_stays_finite(old, new) for old, new in zip(self.rest, rest, strict=True)):
            raise CommandRefused(
                "the target networks or statistics behind this push have NaN or infinite numbers, and it was not "
                "applied: observations of this worker may be at fault."
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

    def _standing(self) -> dict[str, Any]:
        return {"step": self._step, "updates": self._updates, "stop": self.is_over}

    def _flat(self) -> bytes:
        if self._parameters is None:
            self._parameters = self.layout.to_bytes(self.state.params)
        return self._parameters

    def to_json(self) -> dict[str, Any]:
        """Return the last answer to each worker, for a checkpoint."""
        return {"pushes": self.pushes, "answers": {name: [n, answer] for name, (n, answer) in self._answers.items()}}

    def go_on(self, stored: Mapping[str, Any]) -> None:
        """Restore the state that ``to_json`` returned."""
        self.pushes = int(stored["pushes"])
        self._answers.update({name: (int(n), dict(answer)) for name, (n, answer) in stored["answers"].items()})


def _stays_finite(old: np.ndarray, new: np.ndarray) -> bool:
    """Return whether an array has no NaN or infinite number where the one before had none."""
    if new.dtype.kind != "f":
        return True
    return bool((np.isfinite(new) | ~np.isfinite(old)).all())
