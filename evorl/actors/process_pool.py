"""Actors in processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from evorl.actors.pool import SILENT_SECONDS, STARTING_SECONDS, ActorPool, ActorWorker
from evorl.config.names import load, path_of

_BEAT_SECONDS = 0.5
# Settings of JAX that affect results.
SAME_NUMBERS = ("jax_default_prng_impl", "jax_enable_x64", "jax_random_seed_offset", "jax_threefry_partitionable")
_CACHE = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


class ProcessPool(ActorPool):
    """Pool with one process per actor, connected by pipes.

    Each process updates a heartbeat twice a second from a separate thread. This distinguishes a process that was
    stopped, or that never releases Python's global lock, from a process with slow environments.
    """

    def __init__(self, worker: type[ActorWorker], settings_of: Callable[[int], Any]) -> None:
        super().__init__(worker, settings_of)
        # Forking a process with JAX's threads can deadlock, so actors are spawned.
        self._context = multiprocessing.get_context("spawn")
        self._received: queue.SimpleQueue[tuple[_Actor, str, Any]] = queue.SimpleQueue()

    def start(self, number: int) -> None:
        actor = _Actor(self._context, path_of(self._worker), self._settings_of(number), number)
        self._actors[number] = actor
        # In a thread: a process that is stopped while it sends a result would block the learner.
        threading.Thread(target=_receive, args=(actor, self._received.put), daemon=True).start()

    def send(self, number: int, request: tuple[Any, ...]) -> None:
        # In a thread: a large request blocks until the process reads it, but a process that hangs never does.
        args = (self._actors[number].pipe, ForkingPickler.dumps(request))
        threading.Thread(target=_send, args=args, daemon=True).start()

    def answers(self, timeout: float) -> list[tuple[int, str, Any]]:
        results = []
        with contextlib.suppress(queue.Empty):
            while True:
                actor, kind, content = self._received.get(timeout=timeout)
                timeout = 0.0
                if self._actors.get(actor.number) is not actor:  # it was replaced
                    continue
                actor.has_started, actor.is_silent = True, kind == "closed"
                if kind not in ("started", "closed"):
                    results.append((actor.number, kind, content))
        return results

    def why_dead(self, number: int) -> str | None:
        actor = self._actors[number]
        if actor.is_silent:
            actor.process.join(1.0)  # the pipe of a process closes shortly before it exits
        if (code := actor.process.exitcode) is not None:
            hint = "" if actor.beat.value else " at its start (a script with actors needs if __name__ == '__main__':)"
            return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}{hint}"
        if actor.is_silent:
            return "closed its pipe"
        now = time.monotonic()
        silent_for = now - max(actor.started_at, actor.beat.value)
        if silent_for > SILENT_SECONDS and (actor.beat.value > 0.0 or _is_stopped(actor.process.pid)):
            return f"sent no heartbeat for {silent_for:.0f} s"
        if not actor.has_started and now - actor.started_at > STARTING_SECONDS:
            return f"had not started after {STARTING_SECONDS:.0f} s"
        return None

    def stop(self, number: int) -> None:
        if (actor := self._actors.pop(number, None)) is not None:
            actor.end()


class _Actor:
    def __init__(self, context: Any, worker: str, settings: Any, number: int) -> None:
        self.number = number
        self.pipe, actor_end = context.Pipe()
        self.beat = context.Value("d", 0.0, lock=False)  # 0 until the process runs ``_serve``, after its imports
        self.process = context.Process(
            target=_serve,
            args=(actor_end, self.beat, worker, settings, jax_settings(SAME_NUMBERS + _CACHE)),
            name=f"actor-{number}",
            daemon=True,
        )
        self.process.start()
        actor_end.close()
        self.started_at = time.monotonic()
        self.has_started = False
        self.is_silent = False

    def end(self) -> None:
        self.process.kill()  # also works on a stopped process; it has nothing to save
        self.process.join()
        self.process.close()


def _send(pipe: Connection, request: memoryview) -> None:
    with contextlib.suppress(OSError, TypeError):  # the process has ended or is stopped: ``why_dead`` reports it
        pipe.send_bytes(request)


def _receive(actor: _Actor, put: Callable[[tuple[_Actor, str, Any]], None]) -> None:
    """Pass the messages of an actor to ``put``; at the end of its process, pass ``closed`` and close the pipe."""
    with actor.pipe:
        while True:
            try:
                put((actor, *actor.pipe.recv()))
            except (EOFError, OSError):
                put((actor, "closed", None))
                return
            except Exception as error:  # the message cannot be unpickled
                put((actor, "failed", describe_error(error)))


def _is_stopped(pid: int | None) -> bool:
    """Return True if a child of this process was stopped by a signal; False on systems that do not report it."""
    if pid is None or not hasattr(os, "waitid"):
        return False
    return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


def jax_settings(names: tuple[str, ...]) -> dict[str, Any]:
    """Return settings of JAX in this process, which its actors share."""
    import jax

    return {name: getattr(jax.config, name) for name in names}


def prepare_actor(jax_settings: Mapping[str, Any]) -> None:
    """Configure JAX in the process of one actor, before its first computation: one core, and no accelerator.

    Actors share the cores, and the accelerator belongs to the learner.
    """
    import jax

    present = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
    os.environ["XLA_FLAGS"] = " ".join([*present, "--xla_cpu_multi_thread_eigen=false"])
    jax.config.update("jax_platforms", "cpu")
    for name, value in jax_settings.items():
        jax.config.update(name, value)


def _serve(pipe: Connection, beat: Any, worker: str, settings: Any, jax_settings: Mapping[str, Any]) -> None:
    """Run a worker and answer its requests until it raises an error or the learner closes its end of the pipe."""
    # A terminal sends Ctrl-C to all its processes; the learner stops the actors.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    multiprocessing.current_process().daemon = False  # else environments could not start processes
    threading.Thread(target=_keep_beating, args=(beat, os.getppid()), daemon=True).start()
    prepare_actor(jax_settings)
    try:
        actor_worker = load(worker)(settings)
        pipe.send(("started", None))
        while True:
            request = pipe.recv()
            pipe.send(("done", actor_worker.answer(*request)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except BaseException as error:  # includes SystemExit of an environment; Ctrl-C is ignored
        with contextlib.suppress(OSError):
            pipe.send(("failed", describe_error(error)))


def describe_error(error: BaseException) -> str:
    """Return the message of an actor's error for the learner, with the type of the error if it is unexpected."""
    expected = isinstance(error, ValueError | OSError | ArithmeticError)
    return str(error) if expected else f"{type(error).__name__}: {error}"


def _keep_beating(beat: Any, learner: int) -> None:
    while True:
        beat.value = time.monotonic()
        if os.getppid() != learner:  # the learner was killed and cannot stop this process
            os._exit(1)
        time.sleep(_BEAT_SECONDS)
