"""Protocol of openpi's policy servers, for robot clients: an observation per request, an action per response.

Messages are MessagePack in WebSocket frames. The server sends the first frame, the metadata of the policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from evorl.envs.space import DictSpace, leaf_values
from evorl.serving.connections import MessageRate
from evorl.serving.packed_messages import pack_message, unpack_message
from evorl.serving.rlx import ProtocolError
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.session import Refused, Session, SessionError
from evorl.serving.switchboard import Switchboard

if TYPE_CHECKING:
    from aiohttp import web

RESET = "reset"  # entry of an observation that starts an episode
ONLY_NAMES = ("obs", "observation", "state")  # possible names of the observation in a message with several entries


async def talk_to_robot(
    socket: web.WebSocketResponse, switchboard: Switchboard, metadata: Mapping[str, Any], limits: ServeSettings
) -> None:
    """Serve greedy actions to one client until it disconnects, or is silent for ``limits.idle_seconds``.

    A message is a map with the arrays of the observation by name. If the observation is one array, it is the only
    entry, or its name is in ``ONLY_NAMES``. ``reset: true`` starts an episode. The response contains ``actions``, whose
    arrays have a leading axis of length 1 (a chunk of one step), and ``server_timing.infer_ms``. An error is sent as
    text, and closes the connection.
    """
    from aiohttp import WSMsgType

    await socket.send_bytes(pack_message(dict(metadata)))
    rate = MessageRate(limits.max_messages_per_second)
    try:
        with contextlib.closing(_Robot(switchboard)) as robot:
            while True:
                async with asyncio.timeout(limits.idle_seconds or None):  # unlike receive's, not restarted by pings
                    frame = await socket.receive()
                if frame.type == WSMsgType.TEXT:
                    raise ProtocolError("an observation must be MessagePack in a binary frame, got a text frame.")
                if frame.type != WSMsgType.BINARY:
                    break
                rate.take(asyncio.get_running_loop().time())
                started = time.perf_counter()
                action = await robot.act(unpack_message(frame.data))
                response = {"actions": action, "server_timing": {"infer_ms": 1e3 * (time.perf_counter() - started)}}
                await socket.send_bytes(pack_message(response))
    except TimeoutError:
        await socket.close(code=1008, message=b"timed out")
    except (ProtocolError, SessionError) as error:
        await socket.send_str(str(error))
        reason = str(error).encode()[:120].decode(errors="ignore")  # drops the part of a character that was cut
        await socket.close(code=1011, message=reason.encode())


class _Robot:
    """Session of a robot client, which marks the starts of episodes but not their ends."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._space, self._action_space = switchboard.obs_space, switchboard.action_space
        self._session = Session(switchboard, self._take, trusted=True)
        self._session.receive({"command": "init", "exploit": True})

    async def act(self, message: Any) -> Any:
        if not isinstance(message, Mapping):
            raise ProtocolError(f"an observation must be a map, got {type(message).__name__}.")
        starts = message.get(RESET, False)
        if not isinstance(starts, bool):
            raise ProtocolError(f"{RESET} must be true or false, got {starts!r}.")
        if starts:
            self._session.receive({"command": "reset"})
        self._answer = asyncio.get_running_loop().create_future()
        update = {"command": "update", "reward": 0.0, "state": self._state_of(message), "terminal": False}
        self._session.receive(update)
        answer = await self._answer
        if answer["response"] == "error":
            raise Refused(answer["message"])
        leaves, structure = jax.tree.flatten(self._action_space.spec)
        values = leaf_values(self._action_space, answer["data"])
        return structure.unflatten(np.asarray(x, leaf.dtype)[None] for x, leaf in zip(values, leaves, strict=True))

    def _state_of(self, message: Mapping[str, Any]) -> Any:
        parts = {name: value for name, value in message.items() if name != RESET}
        if isinstance(self._space, DictSpace):
            return {name: parts[name] for name in self._space.spaces if name in parts}
        for name in ONLY_NAMES:
            if name in parts:
                return parts[name]
        if len(parts) == 1:
            return next(iter(parts.values()))
        raise ProtocolError(f"this policy takes one array, got {len(parts)}: use the name {' or '.join(ONLY_NAMES)}.")

    def _take(self, answer: dict[str, Any]) -> None:
        if self._answer is not None and not self._answer.done():  # not the response to init or reset
            self._answer.set_result(answer)

    def close(self) -> None:
        self._session.close()
