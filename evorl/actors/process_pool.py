"""Actors that are processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

from evorl.actors.pool import SILENT_SECONDS, STARTING_SECONDS, ActorPool
from evorl.config.names import load

_BEAT_SECONDS = 0.5


class ProcessPool(ActorPool):
    """A process for each actor, which a pipe joins to this one.

    Each gives a sign of life twice a second, from a thread of its own: so a process that was stopped, or holds Python's
    lock for ever, is told from one whose environments are slow.

    Args:
        worker: see ``ActorPool``.
        settings_of: see ``ActorPool``.
    """

    def __init__(self, worker: str, settings_of: Callable[[int], Any]) -> None:
        super().__init__(worker, settings_of)
        # A fork of a process with JAX's threads can hang: actors are started from the beginning.
        self._context = multiprocessing.get_context("spawn")
        self._actors: dict[int, _Actor] = {}

    def start(self, number: int) -> None:
        """See ``ActorPool.start``."""
        self._actors[number] = _Actor(self._context, self._worker, self._settings_of(number), number)

    def send(self, number: int, request: tuple[Any, ...]) -> None:
        """See ``ActorPool.send``."""
        with contextlib.suppress(OSError):  # of a process that is gone: ``why_dead`` says so
            self._actors[number].pipe.send(request)

    def answers(self, timeout: float) -> list[tuple[int, str, Any]]:
        """See ``ActorPool.answers``."""
        numbers: dict[Any, int] = {actor.pipe: number for number, actor in self._actors.items() if not actor.is_silent}
        found = []
        for pipe in wait(list(numbers), timeout):
            number = numbers[pipe]
            try:
                kind, content = self._actors[number].pipe.recv()
            except (EOFError, OSError):
                self._actors[number].is_silent = True
                continue
            self._actors[number].has_started = True
            if kind != "started":
                found.append((number, kind, content))
        return found

    def why_dead(self, number: int) -> str | None:
        """See ``ActorPool.why_dead``."""
        actor = self._actors[number]
        if actor.is_silent:
            actor.process.join(1.0)  # its pipe closes a moment before it has ended
        exit_code = actor.process.exitcode
        if exit_code is not None:
            return f"ended by signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit status {exit_code}"
        if actor.is_silent:
            return "closed its pipe"
        now = time.monotonic()
        silent_for = now - max(actor.started_at, actor.beat.value)
        if silent_for > SILENT_SECONDS and (actor.beat.value > 0.0 or _is_stopped(actor.process.pid)):
            return f"gave no sign of life for {silent_for:.0f} s"
        if not actor.has_started and now - actor.started_at > STARTING_SECONDS:
            return f"had not started after {STARTING_SECONDS:.0f} s"
        return None

    def stop(self, number: int) -> None:
        """See ``ActorPool.stop``."""
        actor = self._actors.pop(number, None)
        if actor is not None:
            actor.end()

    def close(self) -> None:
        """See ``ActorPool.close``."""
        for number in list(self._actors):
            self.stop(number)


class _Actor:
    def __init__(self, context: Any, worker: str, settings: Any, number: int) -> None:
        self.pipe, theirs = context.Pipe()
        self.beat = context.Value("d", 0.0, lock=False)  # not before Python and JAX are there, which may take long
        self.process = context.Process(
            target=_serve,
            args=(theirs, self.beat, worker, settings, _jax_settings()),
            name=f"actor-{number}",
            daemon=True,
        )
        self.process.start()
        theirs.close()
        self.started_at = time.monotonic()
        self.has_started = False
        self.is_silent = False

    def end(self) -> None:
        self.process.kill()  # also one that was stopped; it has nothing to save
        self.process.join()
        self.pipe.close()
        self.process.close()


def _is_stopped(pid: int | None) -> bool:
    """Whether a signal stopped a child of this process, where the system tells."""
    if pid is None or not hasattr(os, "waitid"):
        return False
    return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


def _jax_settings() -> dict[str, Any]:
    """What actors have in common with this process: where compiled programs are kept."""
    import jax

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    return {name: getattr(jax.config, name) for name in names}


def prepare_actor(jax_settings: Mapping[str, Any]) -> None:
    """Set JAX up in a process of one actor, before it computes anything: one core, and no accelerator.

    Actors share the cores between them, and an accelerator is the learner's.
    """
    import jax

    present = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
    os.environ["XLA_FLAGS"] = " ".join([*present, "--xla_cpu_multi_thread_eigen=false"])
    jax.config.update("jax_platforms", "cpu")
    for name, value in jax_settings.items():
        jax.config.update(name, value)


def _serve(pipe: Connection, beat: Any, worker: str, settings: Any, jax_settings: Mapping[str, Any]) -> None:
    """The life of an actor: it ends with its learner, whose end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal: the learner ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_keep_beating, args=(beat, os.getppid()), daemon=True).start()
    prepare_actor(jax_settings)
    try:
        served = load(worker)(settings)
        pipe.send(("started", None))
        while True:
            request = pipe.recv()
            pipe.send(("done", served.answer(*request)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except BaseException as error:  # SystemExit of an environment, too: Ctrl-C does not reach us
        with contextlib.suppress(OSError):
            pipe.send(("failed", in_words(error)))


def in_words(error: BaseException) -> str:
    """Describe what went wrong in an actor, as the learner reports it."""
    expected = isinstance(error, ValueError | OSError | ArithmeticError)
    return str(error) if expected else f"{type(error).__name__}: {error}"


def _keep_beating(beat: Any, learner: int) -> None:
    while True:
        beat.value = time.monotonic()
        if os.getppid() != learner:  # it was killed, and cannot end us
            os._exit(1)
        time.sleep(_BEAT_SECONDS)
