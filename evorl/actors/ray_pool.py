"""Actors on a Ray cluster, or on this machine with Ray. Ray is imported on use (extra ``ray``)."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from evorl.actors.pool import SILENT_SECONDS, STARTING_SECONDS, ActorPool, ActorWorker
from evorl.actors.process_pool import SAME_NUMBERS, describe_error, jax_settings, prepare_actor
from evorl.config.gate import carried, carry_on, is_restricted
from evorl.config.names import load, path_of
from evorl.ops.processes import without_working_directory

_BEAT_SECONDS = 2.0


class RayPool(ActorPool):
    """Pool of Ray actors, in the running cluster or on this machine; raises ``ImportError`` if Ray is not installed."""

    def __init__(self, worker: type[ActorWorker], settings_of: Callable[[int], Any]) -> None:
        super().__init__(worker, settings_of)
        try:
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # otherwise Ray writes a token to the home folder
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
            import ray
        except ImportError as error:
            raise ImportError("actors.kind=ray needs the extra ray: install it, or use actors.kind=process.") from error
        self._ray: Any = ray
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # JAX warns of forks: Ray forks only to start other programs
                with _away_from_foreign_modules():
                    ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
        self._class: Any = ray.remote(_RayWorker).options(num_cpus=0, max_concurrency=2)
        self._pending: dict[Any, int] = {}
        self._beats: dict[int, tuple[Any, float]] = {}
        self._seen_at: dict[int, float] = {}
        self._causes: dict[int, str] = {}

    def start(self, number: int) -> None:
        settings = (self._settings_of(number), jax_settings(SAME_NUMBERS), carried())
        self._actors[number] = self._class.remote(path_of(self._worker), *settings)
        self._seen_at[number] = time.monotonic() + STARTING_SECONDS - SILENT_SECONDS
        self._beats[number] = (self._actors[number].beat.remote(), time.monotonic())
        self._causes.pop(number, None)

    def send(self, number: int, request: tuple[Any, ...]) -> None:
        self._pending[self._actors[number].answer.remote(*request)] = number

    def answers(self, timeout: float) -> list[tuple[int, str, Any]]:
        if not self._pending:
            time.sleep(timeout)
            return []
        self._ray.wait(list(self._pending), num_returns=1, timeout=timeout)
        ready, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        results = []
        for reference in ready:
            number = self._pending.pop(reference)
            try:
                kind, content = self._ray.get(reference)
            except self._ray.exceptions.RayActorError:
                self._causes[number] = "ended unexpectedly"
                continue
            except self._ray.exceptions.RayTaskError as error:
                kind, content = "failed", str(error.cause)
            self._seen_at[number] = max(self._seen_at[number], time.monotonic())
            results.append((number, kind, content))
        return results

    def why_dead(self, number: int) -> str | None:
        if number in self._causes:
            return self._causes[number]
        beat, sent_at = self._beats[number]
        now = time.monotonic()
        if self._ray.wait([beat], timeout=0)[0]:
            try:
                self._ray.get(beat)
            except self._ray.exceptions.RayError:
                return "ended unexpectedly"
            self._seen_at[number] = now
            if now - sent_at > _BEAT_SECONDS:
                self._beats[number] = (self._actors[number].beat.remote(), now)
        elif now - self._seen_at[number] > SILENT_SECONDS:
            return f"sent no heartbeat for {now - sent_at:.0f} s"
        return None

    def stop(self, number: int) -> None:
        actor = self._actors.pop(number, None)
        self._pending = {reference: owner for reference, owner in self._pending.items() if owner != number}
        if actor is not None:
            with contextlib.suppress(Exception):
                self._ray.kill(actor, no_restart=True)

    def close(self) -> None:
        super().close()
        if self._started_ray:
            self._ray.shutdown()


def _away_from_foreign_modules() -> contextlib.AbstractContextManager[None]:
    """Return a context in which Ray can be started without importing modules of an untrusted working directory.

    Ray's processes search the working directory for modules first. While an untrusted source is open, the context
    therefore changes to the folder of the Python installation, unless this process searches the working directory too.
    """
    is_safe = not (is_restricted() and without_working_directory())
    return contextlib.nullcontext() if is_safe else contextlib.chdir(sys.prefix)


class _RayWorker:
    def __init__(self, worker: str, settings: Any, jax_settings: dict[str, Any], restrictions: str) -> None:
        carry_on(restrictions)  # Ray's processes may have been started earlier, on another machine
        self._worker_name, self._settings, self._jax_settings = worker, settings, jax_settings
        self._worker: Any = None

    def beat(self) -> None:
        """Return immediately, as a heartbeat."""

    def process_id(self) -> int:
        """Return the process identifier."""
        return os.getpid()

    def answer(self, *request: Any) -> tuple[str, Any]:
        try:
            if self._worker is None:
                prepare_actor(self._jax_settings)
                self._worker = load(self._worker_name)(self._settings)
            return "done", self._worker.answer(*request)
        except BaseException as error:  # includes SystemExit of an environment
            return "failed", describe_error(error)
