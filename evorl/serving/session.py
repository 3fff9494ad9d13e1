"""Session of one simulator: ``init``, then updates, each answered with an action; updates mark ends of episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from evorl.config.names import no_such
from evorl.config.values import short_repr
from evorl.envs.remote import observation_space_from_config, space_from_config
from evorl.envs.space import Space
from evorl.serving.batched_inference import ActionRequest
from evorl.serving.observations import ObservationError, observation_from
from evorl.sockets.frame_server import refused_token

COMMANDS = ("init", "update", "reset", "update_metrics")
MAX_METRICS = 1000  # maximum number of metrics in one message
MAX_NUMBERS = 4096  # maximum elements of a space that a client declares, unless the server's space has more
MAX_DEPTH = 8  # maximum nesting depth of a space that a client declares
MAX_REWARD = 1e15  # largest absolute value: squared returns, which losses compute, stay finite in float32
MAX_STEP = 2.0**53  # maximum step of a metric: float64 represents all integers up to here


class Host(Protocol):
    """Interface of a server to its sessions; ``token`` is ``None`` if clients do not need a token."""

    obs_space: Space
    action_space: Space
    token: str | None

    def enter(self, exploit: bool) -> tuple[int, int]:
        """Open a session; return its number and slot. Raise ``Refused`` if the server is full."""
        ...

    def leave(self, number: int, slot: int) -> None:
        """Close a session; the outcome of its last action remains unknown."""

    def cut(self, number: int) -> None:
        """Abort the current episode of a session; its steps so far can still be used for learning."""

    def ask(self, request: ActionRequest) -> None:
        """Queue a request; ``request.answer`` receives the action later."""

    def episode(self, number: int, exploit: bool, episode_return: float, length: int) -> None:
        """Record the return and length of a completed episode."""

    def store_metric(self, method: str, name: str, y: Any, x: float | None, /) -> None:
        """Store a metric of a client: one number, or several for a histogram."""


class SessionError(ValueError):
    """Raised for a rejected message; the session continues."""


class Refused(SessionError):
    """Raised for a rejection that ends the session, for example because of a wrong token or a full server."""


class Session:
    """Server side of a client's session, over any transport: checks messages, and passes requests to ``host``.

    Args:
        host: server that answers the requests.
        reply: callback that sends a response to the client.
        trusted: true if the connection is already authenticated.
    """

    def __init__(self, host: Host, reply: Callable[[dict[str, Any]], None], trusted: bool = False) -> None:
        self._host, self._reply = host, reply
        self.is_trusted = trusted or host.token is None
        self._entry: tuple[int, int] | None = None  # number and slot
        self._exploit = False
        self._steps = 0  # requests so far
        self._last_obs: Any = None  # last observation of the current episode
        self._return, self._length = 0.0, 0
        self.is_waiting = False  # true while the client waits for an action

    @property
    def has_begun(self) -> bool:
        """True after a valid ``init``."""
        return self._entry is not None

    def receive(self, message: Mapping[str, Any]) -> None:
        """Process a message; ``reply`` receives the response, now or when the action is known.

        Raises:
            Refused: the client must be disconnected; the reason was already sent.
        """
        try:
            command = message.get("command")
            if type(command) is not str:  # an array would compare elementwise
                got = "none" if command is None else type(command).__name__
                raise SessionError(f"command must be one of {', '.join(COMMANDS)}; got {got}.")
            if command == "update" and self.is_trusted:  # nearly all messages
                self._update(message)
                return
            if command not in COMMANDS:
                raise SessionError(no_such("command", command[:100], COMMANDS))
            if not self.is_trusted and command != "init":
                raise Refused("the first message must be init, with the token of this server.")
            getattr(self, f"_{command}")(message)
        except (SessionError, ObservationError) as error:
            self._reply({"response": "error", "message": str(error)})
            if isinstance(error, Refused):
                raise

    def close(self) -> None:
        """End the session after the client has disconnected."""
        if self._entry is not None:
            self._host.leave(*self._entry)
            self._entry, self._last_obs = None, None

    def _init(self, message: Mapping[str, Any]) -> None:
        if not self.is_trusted and (refusal := refused_token(message, self._host.token, "init")):
            raise Refused(refusal)
        self.is_trusted = True
        exploit = _flag(message, "exploit")
        self._check_space("obs_space", message, self._host.obs_space)
        self._check_space("action_space", message, self._host.action_space)
        self._refuse_while_waiting("init")
        self.close()
        self._entry, self._exploit, self._steps = self._host.enter(exploit), exploit, 0
        self._reply({"response": "ready"})

    @staticmethod
    def _check_space(name: str, message: Mapping[str, Any], space: Space) -> None:
        if message.get(name) is None:
            return
        try:
            _check_size(message[name], name, max(MAX_NUMBERS, _num_numbers(space)))
            read = observation_space_from_config if name == "obs_space" else space_from_config
            declared = read(message[name], name)
        except (ValueError, TypeError, OverflowError) as error:
            reason = str(error) if name in str(error) else f"{name} does not describe a space: {error}"
            raise SessionError(reason) from error
        if declared != space:
            raise SessionError(f"{name} must be {space}, the space of the server, got {declared}.")

    def _update(self, message: Mapping[str, Any]) -> None:
        number, slot = self._entry or self._ready("update")
        self._refuse_while_waiting("update")
        terminal, truncated = _flag(message, "terminal"), _flag(message, "truncated")
        over = terminal or truncated
        starts = self._last_obs is None
        if starts and over:  # an episode without a step
            self._reply({"response": "action", "data": None})
            return
        reward = 0.0 if starts else reward_from(message.get("reward"))
        state = message.get("state")
        if state is None and (truncated or not over):
            kind = "a truncating update" if truncated else "an update"
            raise SessionError(f"state is missing: {kind} needs it.")
        # The value of a terminal state is 0 regardless of its observation.
        obs = self._last_obs if state is None else observation_from(state, self._host.obs_space)
        answer = None if over else self._send_action
        request = ActionRequest(
            number, slot, self._steps, obs, reward, starts, over and not truncated, truncated, self._exploit, answer
        )
        self._steps += 1
        if starts:
            self._return, self._length = 0.0, 0
        else:
            self._return, self._length = self._return + reward, self._length + 1
        self._last_obs = None if over else obs
        self.is_waiting = not over
        self._host.ask(request)
        if over:
            self._host.episode(number, self._exploit, self._return, self._length)
            self._reply({"response": "action", "data": None})

    def _send_action(self, action: Any) -> None:
        self.is_waiting = False
        if self._entry is not None:
            self._reply({"response": "action", "data": action})

    def _reset(self, message: Mapping[str, Any]) -> None:
        number, _ = self._ready("reset")
        self._refuse_while_waiting("reset")
        if self._last_obs is not None:
            self._host.cut(number)
            self._last_obs = None
        self._reply({"response": "done"})

    def _update_metrics(self, message: Mapping[str, Any]) -> None:
        items = message.get("data", [message])
        if not isinstance(items, list) or len(items) > MAX_METRICS:
            got = len(items) if isinstance(items, list) else type(items).__name__
            raise SessionError(f"data of update_metrics must be a list of at most {MAX_METRICS} metrics, got {got}.")
        for item in items:
            if not isinstance(item, Mapping) or not isinstance(item.get("name"), str) or "y" not in item:
                raise SessionError(f"every metric needs a string name and a value y, got {str(item)[:80]}.")
            x = item.get("x")
            self._host.store_metric(
                str(item.get("method", "scalar")), item["name"], item["y"], None if x is None else reward_from(x, "x")
            )
        self._reply({"response": "done"})

    def _ready(self, command: str) -> tuple[int, int]:
        if self._entry is None:
            raise SessionError(f"received {command} before init: send init first.")
        return self._entry

    def _refuse_while_waiting(self, command: str) -> None:
        if self.is_waiting:
            raise SessionError(f"received {command} before the response to the last update: wait for the action.")


def reward_from(value: Any, name: str = "reward") -> float:
    """Convert a number, or a list of one, to a float; raise ``SessionError``, with ``name``, for anything else.

    ``name`` is "reward", or "x" for a metric's step, and selects the limit.
    """
    limit = MAX_REWARD if name == "reward" else MAX_STEP
    if type(value) is float and abs(value) <= limit:
        return value
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None and name == "reward":
        raise SessionError(f"{name} is missing: every update except the first of an episode needs it.")
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise SessionError(f"{name} must be a number, got {type(value).__name__}.")
    if not abs(value) <= limit:  # also rejects NaN
        raise SessionError(
            f"{name} must be a finite number with an absolute value of at most {limit:g}, got {str(value)[:20]}."
        )
    return float(value)


def _num_numbers(space: Space) -> int:
    """Return the total number of scalars in one element of the space; an empty axis counts as one of length 1."""
    return sum(math.prod(filter(None, of.shape)) for of in jax.tree.leaves(space.spec))


def _check_size(space: Any, name: str, limit: int, depth: int = 0) -> int:
    """Return a declared space's size. Raise ``SessionError`` if it exceeds ``limit``, or for a bad shape or nesting."""
    if not isinstance(space, Mapping):
        return 0
    if depth > MAX_DEPTH:
        raise SessionError(f"{name} is nested more than {MAX_DEPTH} levels deep.")
    total = sum(_check_size(part, name, limit, depth + 1) for part in space.values())
    if not all(isinstance(part, Mapping) for part in space.values()):  # otherwise it is a dict of spaces
        bounds = np.broadcast_shapes(*[np.shape(space.get(bound, 0.0)) for bound in ("low", "high", "n")])
        shape = bounds if space.get("shape") is None else space["shape"]
        if not isinstance(shape, list | tuple) or not all(type(size) is int for size in shape):
            raise SessionError(f"the shape of {name} must be a list of integers, got {str(shape)[:40]}.")
        total += max(math.prod(filter(None, shape)), math.prod(bounds))
    if total > limit:
        raise SessionError(f"{name} has more than {limit} elements.")
    return total


def _flag(message: Mapping[str, Any], name: str) -> bool:
    value = message.get(name, False)
    if not isinstance(value, bool):
        raise SessionError(f"{name} must be true or false, got {short_repr(value)}.")
    return value
