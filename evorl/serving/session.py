"""One simulator's conversation: init, then updates that are answered with actions; it says where episodes end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from evorl.config.names import no_such
from evorl.envs.remote import space_from_config
from evorl.envs.space import Space
from evorl.serving.answering import Question
from evorl.serving.observations import ObservationError, observation_from
from evorl.sockets.access import is_same_secret

COMMANDS = ("init", "update", "reset", "update_metrics")
MOST_METRICS = 1000  # in one message
MOST_NUMBERS = 4096  # of a space that a client says it has, unless the server's own has more: its bounds are arrays
MOST_DEPTH = 8  # of its parts
MAX_REWARD = 1e15  # in size: the squares of discounted sums stay finite in float32, which losses compute
MAX_STEP = 2.0**53  # of a metric: up to there a float64 holds all whole numbers


class Host(Protocol):
    """Interface of a server to its sessions."""

    obs_space: Space
    action_space: Space
    token: str | None

    def enter(self, exploit: bool) -> tuple[int, int]:
        """The number of a new session and its row. Raises ``SessionError`` where there is no room."""
        ...

    def leave(self, number: int, slot: int) -> None:
        """A session is gone: what it did last has no outcome."""
        ...

    def cut(self, number: int) -> None:
        """The running episode of a session is broken off."""
        ...

    def ask(self, question: Question) -> None:
        """Have a question answered, soon."""
        ...

    def episode(self, number: int, exploit: bool, episode_return: float, length: int) -> None:
        """An episode of a session has come to its end."""
        ...

    def store_metric(self, method: str, name: str, y: Any, x: float | None, /) -> None:
        """Keep a number, or several for a histogram, that a client sends."""
        ...


class SessionError(ValueError):
    """A message that is refused; the conversation goes on."""


class Refused(SessionError):
    """A refusal that ends the conversation: a wrong token, or no room."""


class Session:
    """The state of one conversation; knows nothing of how its messages travel.

    Args:
        host: who answers.
        reply: is given each answer, a message.
        trusted: whether the connection has shown the token already.
    """

    def __init__(self, host: Host, reply: Callable[[dict[str, Any]], None], trusted: bool = False) -> None:
        self._host, self._reply = host, reply
        self.is_trusted = trusted or host.token is None
        self._place: tuple[int, int] | None = None  # number and slot
        self._exploit = False
        self._steps = 0  # questions so far
        self._last_obs: Any = None  # of the running episode
        self._return, self._length = 0.0, 0
        self.is_waiting = False  # for an action

    @property
    def has_begun(self) -> bool:
        """Return whether init was understood."""
        return self._place is not None

    def receive(self, message: Mapping[str, Any]) -> None:
        """Take in a message; the answer goes to ``reply``, now or when the action is known.

        Raises:
            Refused: the client may not go on; it has been told why.
        """
        try:
            command = message.get("command")
            if type(command) is not str:  # an array would compare by its numbers
                raise SessionError(f"unknown command{'' if command is None else f': {type(command).__name__}'}")
            if command == "update" and self.is_trusted:  # next to all of them
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
        """The client is gone."""
        if self._place is not None:
            self._host.leave(*self._place)
            self._place, self._last_obs = None, None

    def _init(self, message: Mapping[str, Any]) -> None:
        if not self.is_trusted and not is_same_secret(message.get("token"), self._host.token):
            got = "another" if "token" in message else "none"
            raise Refused(f"this server needs its token in init, and got {got}.")
        self.is_trusted = True
        exploit = message.get("exploit", False)
        if not isinstance(exploit, bool):
            raise SessionError(f"exploit must be true or false, got {exploit!r}.")
        self._check_space("obs_space", message, self._host.obs_space)
        self._check_space("action_space", message, self._host.action_space)
        self._refuse_while_waiting("init")
        self.close()
        self._place, self._exploit, self._steps = self._host.enter(exploit), exploit, 0
        self._reply({"response": "ready"})

    @staticmethod
    def _check_space(name: str, message: Mapping[str, Any], space: Space) -> None:
        if message.get(name) is None:
            return
        try:
            _refuse_vast(message[name], name, max(MOST_NUMBERS, _num_numbers(space)))
            told = space_from_config(message[name], name)
        except (ValueError, TypeError, OverflowError) as error:
            raise SessionError(str(error) if name in str(error) else f"{name} is no space: {error}") from error
        if told != space:
            raise SessionError(f"{name} of this client is {told}, and the server was started for {space}.")

    def _update(self, message: Mapping[str, Any]) -> None:
        number, slot = self._place or self._ready("update")
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
            what = "a truncated episode goes on somewhere: its" if truncated else "an update needs a"
            raise SessionError(f"{what} state is missing.")
        # What follows the end of a task is worth nothing, whatever it is.
        obs = self._last_obs if state is None else observation_from(state, self._host.obs_space)
        answer = None if over else self._answered
        question = Question(
            number, slot, self._steps, obs, reward, starts, over and not truncated, truncated, self._exploit, answer
        )
        self._steps += 1
        if starts:
            self._return, self._length = 0.0, 0
        else:
            self._return, self._length = self._return + reward, self._length + 1
        self._last_obs = None if over else obs
        self.is_waiting = not over
        self._host.ask(question)
        if over:
            self._host.episode(number, self._exploit, self._return, self._length)
            self._reply({"response": "action", "data": None})

    def _answered(self, action: Any) -> None:
        self.is_waiting = False
        if self._place is not None:
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
        if not isinstance(items, list) or len(items) > MOST_METRICS:
            raise SessionError(f"data of update_metrics must be a list of at most {MOST_METRICS} metrics.")
        for item in items:
            if not isinstance(item, Mapping) or not isinstance(item.get("name"), str) or "y" not in item:
                raise SessionError("a metric has a name and a value y.")
            x = item.get("x")
            self._host.store_metric(
                str(item.get("method", "scalar")), item["name"], item["y"], None if x is None else reward_from(x, "x")
            )
        self._reply({"response": "done"})

    def _ready(self, command: str) -> tuple[int, int]:
        if self._place is None:
            raise SessionError(f"{command} came before init: send init first.")
        return self._place

    def _refuse_while_waiting(self, command: str) -> None:
        if self.is_waiting:
            raise SessionError(f"{command} came before the last update was answered: wait for the action.")


def reward_from(value: Any, name: str = "reward") -> float:
    """A number as a client sends it: a finite one, or a list of a single one.

    Raises:
        SessionError: it is none; in words.
    """
    most = MAX_REWARD if name == "reward" else MAX_STEP
    if type(value) is float and abs(value) <= most:
        return value
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None:
        raise SessionError(f"{name} is missing: each update but the first of an episode has one.")
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise SessionError(f"{name} must be a number, got {type(value).__name__}.")
    if not abs(value) <= most:  # NaN is not either
        raise SessionError(f"{name} must be a finite number of at most {most:g} in size, got {str(value)[:20]}.")
    return float(value)


def _num_numbers(space: Space) -> int:
    """Numbers of one element, of all parts together."""
    return sum(math.prod(of.shape) for of in jax.tree.leaves(space.spec))


def _refuse_vast(config: Any, name: str, most: int, depth: int = 0) -> None:
    """Raises ``SessionError`` for a description of a space that would take the server's memory."""
    if not isinstance(config, Mapping):
        return
    if depth > MOST_DEPTH:
        raise SessionError(f"{name} has parts in more than {MOST_DEPTH} of one another.")
    bounds = np.broadcast_shapes(*[np.shape(config.get(bound, 0.0)) for bound in ("low", "high")])
    shape = config.get("shape", bounds)
    if shape is None or isinstance(shape, Mapping):  # that of the bounds; a part of that name
        shape = bounds
    if not isinstance(shape, list | tuple) or not all(type(size) is int for size in shape):
        raise SessionError(f"the shape of {name} must be a list of whole numbers.")
    if max(math.prod(filter(None, shape)), math.prod(bounds)) > most:
        raise SessionError(f"{name} has more than {most} numbers.")
    for part in config.values():
        _refuse_vast(part, name, most, depth + 1)


def _flag(message: Mapping[str, Any], name: str) -> bool:
    value = message.get(name, False)
    if not isinstance(value, bool):
        raise SessionError(f"{name} must be true or false, got {value!r}.")
    return value
