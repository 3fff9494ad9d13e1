"""Batches action requests: requests that arrive in the same iteration of the event loop share one forward pass.

All methods run in the thread of the event loop except ``note_new_policy``, ``wait_for_batch``, ``begin_evaluation`` and
``wait_for_episodes``, which the learner calls in its own thread.
"""

from __future__ import annotations

import asyncio
import collections
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from evorl.envs.space import Space
from evorl.serving.batch_delay import BatchDelay
from evorl.serving.batched_inference import MAX_BATCH, ActionBatch, ActionRequest
from evorl.serving.observations import action_as_sent
from evorl.serving.segments import Segments, StepRef
from evorl.serving.session import Refused

MAX_EPISODES = 10_000  # maximum number of stored greedy episodes
SECONDS_BETWEEN_LOOKS = 0.2
StoreMetric = Callable[[str, str, Any, float | None], None]


class Inference(Protocol):
    """Interface of the inference that answers batches of requests."""

    def ask(self, requests: Sequence[ActionRequest]) -> ActionBatch:
        """Return the actions for requests of different sessions, all with the same ``exploit``."""
        ...


class Switchboard:
    """Implementation of ``evorl.serving.session.Host`` that answers the requests of all sessions in batches.

    Args:
        inference: computes the actions of a batch of requests.
        segments: receives the steps of training sessions; ``None`` if no learner uses them.
        obs_space: observation space of a simulator.
        action_space: action space of a simulator.
        max_clients: maximum number of simultaneous sessions.
        token: access token that clients must send; ``None`` for no authentication.

    Attributes:
        store_metric: callback ``(method, name, y, x)`` that stores a metric of a client; by default it is discarded.
        num_answers: number of actions sent so far.
        returns: returns of the last 100 episodes of training sessions, the newest last.
        failure: exception of a failed inference, which ends all answers; ``None`` if there was no failure.
        greedy_returns: (return, length) of episodes of greedy sessions (``exploit``) that no evaluation has used yet.
    """

    def __init__(
        self,
        inference: Inference,
        segments: Segments | None,
        obs_space: Space,
        action_space: Space,
        max_clients: int,
        *,
        token: str | None = None,
    ) -> None:
        self.obs_space, self.action_space, self.token = obs_space, action_space, token
        self.store_metric: StoreMetric = lambda *_: None
        self.num_answers = 0
        self.returns: collections.deque[float] = collections.deque(maxlen=100)
        self.greedy_returns: list[tuple[float, int]] = []
        self._inference, self._segments = inference, segments
        self._free = list(range(max_clients))[::-1]
        self._max_clients = max_clients
        self._greedy: set[int] = set()  # numbers of the greedy sessions
        self._began_before: set[int] = set()  # subset of _greedy whose episodes began before the evaluation
        self._sessions: set[int] = set()
        self._next_number = 0
        self._pending: collections.deque[ActionRequest] = collections.deque()
        self._leaving: dict[int, int] = {}  # slots of closed sessions that still have pending requests
        self._turn_is_due = False
        self._delay = BatchDelay()
        self._has_learned = True  # a batch was taken since the last publication, so the next policy differs
        self._is_held = False  # true while training sessions wait for the learner
        self._lock = threading.Condition()  # guards the segments, which the learner reads
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: BaseException | None = None

    @property
    def num_clients(self) -> int:
        """Number of open sessions."""
        return len(self._sessions)

    @property
    def num_greedy(self) -> int:
        """Number of open greedy sessions."""
        return len(self._greedy)

    @property
    def num_waiting(self) -> int:
        """Number of pending requests."""
        return len(self._pending)

    def enter(self, exploit: bool) -> tuple[int, int]:
        """Open a session; return its number and slot. Raise ``Refused`` if all slots are in use."""
        if not self._free:
            raise Refused(f"this server already has max_clients={self._max_clients} clients: try again later.")
        number, slot = self._next_number, self._free.pop()
        self._next_number += 1
        self._sessions.add(number)
        if exploit:
            self._greedy.add(number)
        return number, slot

    def leave(self, number: int, slot: int) -> None:
        """Close a session; its slot is freed once its pending requests are processed."""
        self._leaving[number] = slot
        if not any(request.session == number for request in self._pending):
            self._gone(number)

    def _gone(self, number: int) -> None:
        self.cut(number)
        self._sessions.discard(number)
        self._greedy.discard(number)
        self._began_before.discard(number)
        self._free.append(self._leaving.pop(number))

    def cut(self, number: int) -> None:
        """Abort the current episode of a session; its steps so far can still be used for learning."""
        if self._segments is not None and number not in self._greedy:
            with self._lock:
                self._segments.cut(number)

    def ask(self, request: ActionRequest) -> None:
        """Queue a request; ``request.answer`` receives the action later."""
        if request.starts:
            self._began_before.discard(request.session)
        self._pending.append(request)
        self._schedule()

    def episode(self, number: int, exploit: bool, episode_return: float, length: int) -> None:
        """Record a completed episode; a greedy one that began before the current evaluation is ignored."""
        if number in self._began_before:
            return
        if exploit:
            with self._lock:
                self.greedy_returns.append((episode_return, length))
                del self.greedy_returns[:-MAX_EPISODES]
                self._lock.notify_all()
        else:
            self.returns.append(episode_return)

    def _schedule(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop = self._loop or asyncio.get_running_loop()
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if not self._is_held and self._delay.has_paused(len(self._pending), len(self._sessions)):
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._turn)  # run after the next reads of the event loop
            return
        self._turn_is_due = False
        if self.failure is not None:
            return
        try:
            answered = [self._answer(self._next(exploit)) for exploit in (True, False) if exploit or not self._is_held]
        except Exception as error:  # the learner's thread raises it
            with self._lock:
                self.failure = error
                self._lock.notify_all()
            return
        if any(answered) and self._pending:
            self._schedule()

    def _next(self, exploit: bool) -> list[ActionRequest]:
        """Remove and return up to ``MAX_BATCH`` pending requests with this ``exploit``: the first of each session."""
        if exploit and not self._greedy:
            return []
        chosen: dict[int, ActionRequest] = {}
        left: list[ActionRequest] = []
        for request in self._pending:
            if request.exploit is exploit and len(chosen) < MAX_BATCH and request.session not in chosen:
                chosen[request.session] = request
            else:
                left.append(request)
        self._pending = collections.deque(left)
        return list(chosen.values())

    def _answer(self, requests: list[ActionRequest]) -> bool:
        """Answer a batch; return False if it is empty."""
        if not requests:
            return False
        with self._lock:  # the policy must not change between the call and the recording of its version
            actions, steps = self._inference.ask(requests)
            if self._segments is not None and steps is not None and not requests[0].exploit:
                self._record(self._segments, requests, steps)
        sent = actions.tolist() if isinstance(actions, np.ndarray) and actions.ndim < 3 else None
        for i, request in enumerate(requests):
            if request.session in self._leaving:
                if not any(other.session == request.session for other in self._pending):
                    self._gone(request.session)
            elif request.answer is not None:
                self.num_answers += 1
                request.answer(action_as_sent(jax.tree.map(lambda x, i=i: x[i], actions)) if sent is None else sent[i])
        return True

    def _record(self, segments: Segments, requests: list[ActionRequest], steps: list[np.ndarray]) -> None:
        for i, request in enumerate(requests):
            if not request.starts:
                segments.add(request.session, StepRef(steps, i), request.terminated or request.truncated)
            segments.answered(request.session)
        limit = segments.num_rows * max(1, segments.max_lag or 1)
        if segments.num_full >= limit and segments.is_ready:
            self._is_held = True
        self._lock.notify_all()

    def note_new_policy(self) -> None:
        """Increment the policy version if a batch was taken since the last call; resume held training sessions."""
        if self._segments is not None and self._has_learned:
            with self._lock:
                self._segments.new_policy()
                self._has_learned = False
        self._release()

    def _release(self) -> None:
        """Resume answering training sessions."""
        self._is_held = False
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._schedule)

    def wait_for_batch(self, should_stop: Callable[[], bool]) -> tuple[list[np.ndarray], np.ndarray, float] | None:
        """Wait for a batch and return it as ``Segments.take`` does; ``None`` if ``should_stop()`` returns True first.

        Raises:
            RuntimeError: the inference failed.
        """
        segments = self._segments
        assert segments is not None, "only a training server waits for batches"
        if not self._wait(lambda: segments.is_ready, should_stop):
            return None
        with self._lock:
            batch = segments.take()
            self._has_learned = True
        if segments.max_lag != 0:  # with 0, requests wait for the policy updated with this batch
            self._release()
        return batch

    def begin_evaluation(self) -> None:
        """Start an evaluation: only greedy episodes that begin later count."""
        with self._lock:
            self._began_before = set(self._greedy)
            self.greedy_returns = []

    def wait_for_episodes(self, count: int, seconds: float, should_stop: Callable[[], bool]) -> list[tuple[float, int]]:
        """Wait for ``count`` greedy episodes; return their (return, length), fewer after ``seconds`` or if stopped."""
        end = time.monotonic() + seconds
        self._wait(lambda: len(self.greedy_returns) >= count, lambda: should_stop() or time.monotonic() > end)
        with self._lock:
            episodes, self.greedy_returns = self.greedy_returns[-count:], []
        return episodes

    def _wait(self, is_there: Callable[[], bool], should_stop: Callable[[], bool]) -> bool:
        while True:
            with self._lock:
                if self.failure is not None:
                    raise RuntimeError(f"action requests could not be answered: {self.failure}") from self.failure
                if is_there():
                    return True
                self._lock.wait(SECONDS_BETWEEN_LOOKS)
            if should_stop():
                return False

    def numbers(self) -> dict[str, float]:
        """Return the metrics for monitoring the server, by name."""
        return {
            "clients": self.num_clients,
            "clients_exploiting": self.num_greedy,
            "requests_waiting": self.num_waiting,
            "responses_total": self.num_answers,
            "segments_waiting": self._segments.num_full if self._segments else 0,
            "segments_dropped_total": self._segments.dropped if self._segments else 0,
            "policy_version": self._segments.version if self._segments else 0,
            "mean_return": self.mean_return,
        }

    @property
    def mean_return(self) -> float:
        """Mean return of the last 100 episodes of training sessions; NaN before the first one."""
        returns = list(self.returns)
        return sum(returns) / len(returns) if returns else math.nan
