"""Checks of ``evorl check-client``: scripted conversations with the client under test."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from evorl.serving.conformance import REWARD, Check, CheckFailedError, Conversation, is_same_value, shown
from evorl.serving.protocol_vectors import Refused, Vector, message_vectors, refused_vectors
from evorl.serving.rlx import encode, frame

PAUSE = 0.005  # seconds between the pieces of a frame: long enough for separate reads
WAIT = 0.2  # seconds by which an answer is delayed
LARGE = 2**18  # number of elements of an array whose frame takes several reads


def all_checks() -> list[Check]:
    """Return all checks in the order of their execution."""
    answers = [vector for vector in message_vectors() if vector.name.startswith("answer-")]
    return [
        *(Check(script.__name__.strip("_").replace("_", "-"), script) for script in _SCRIPTS),
        *(Check(vector.name, functools.partial(_answer, vector)) for vector in answers),
        *(Check(vector.name, functools.partial(_refused, vector)) for vector in refused_vectors()),
    ]


def _init(talk: Conversation) -> None:
    message = talk.receive_command("init")
    if not isinstance(message.get("exploit"), bool):
        raise CheckFailedError("the message init with exploit as a BOOLEAN", shown(message))


def _init_error(talk: Conversation) -> None:
    talk.receive_command("init")
    talk.send({"response": "error", "message": "can't initialize agent"})
    talk.expect_end()


def _first_update(talk: Conversation) -> None:
    talk.receive_command("init")
    talk.send({"response": "ready"})
    talk.receive_command("update", reward=None, state=[], terminal=False)


def _update(talk: Conversation) -> None:
    talk.begin()
    for action in (3, 4):
        talk.answer(action)
        talk.receive_command("update", reward=REWARD, state=[action], terminal=False)


def _terminal(talk: Conversation) -> None:
    talk.begin()
    talk.answer("terminal")
    talk.receive_command("update", reward=REWARD, state=["terminal"], terminal=True)
    talk.answer(None)
    talk.receive_command("update", reward=None, state=[None], terminal=False)
    talk.answer(1)
    talk.receive_command("update", reward=REWARD, state=[1], terminal=False)


def _reset(talk: Conversation) -> None:
    talk.begin()
    talk.answer("reset")
    talk.receive_command("reset")
    talk.send({"response": "done"})
    talk.receive_command("update", reward=None, state=["done"], terminal=False)


def _metric(talk: Conversation) -> None:
    talk.begin()
    talk.answer("metric")
    message = talk.receive_command("update_metrics")
    metrics = message.get("data", message)  # old clients send a single metric without the key data
    (metric, *_) = metrics if isinstance(metrics, list) and metrics else [metrics]
    expected = {"method": "scalar", "name": "check", "y": REWARD}
    if not isinstance(metric, dict) or not all(is_same_value(expected[key], metric.get(key)) for key in expected):
        raise CheckFailedError(f"update_metrics with data [{shown(expected)}]", shown(message))
    talk.send({"response": "done"})
    talk.receive_command("update", state=["metric"])


def _end(talk: Conversation) -> None:
    talk.begin()
    talk.answer("end")
    talk.expect_end()


def _turns(talk: Conversation) -> None:
    talk.receive_command("init")
    talk.expect_silence(WAIT)
    talk.send({"response": "ready"})
    talk.receive_command("update")
    talk.expect_silence(WAIT)
    talk.answer(5)
    talk.receive_command("update", state=[5])


def _frame_bytes(talk: Conversation) -> None:
    _fragments(talk, lambda framed: [framed[i : i + 1] for i in range(len(framed))])


def _frame_parts(talk: Conversation) -> None:
    def parts(framed: bytes) -> list[bytes]:
        start = framed.index(b":") + 1
        return [framed[:start], framed[start:-1], framed[-1:]]

    _fragments(talk, parts)


def _frame_header(talk: Conversation) -> None:
    _fragments(talk, lambda framed: [framed[:1], framed[1:]])


def _fragments(talk: Conversation, pieces: Callable[[bytes], list[bytes]]) -> None:
    """Send responses in pieces; a payload contains commas and colons, so only its length tells where the frame ends."""
    talk.receive_command("init")
    talk.send_bytes(*pieces(frame(encode({"response": "ready"}))), pause=PAUSE)
    talk.receive_command("update")
    for action in ("1:a,2:b,", 7):
        talk.send_bytes(*pieces(frame(encode({"response": "action", "data": action}))), pause=PAUSE)
        talk.receive_command("update", state=[action])


def _frame_large(talk: Conversation) -> None:
    talk.begin()
    action = np.arange(LARGE, dtype=np.float32)
    talk.answer(action)
    message = talk.receive("an update with the array that was sent")
    state = message.get("state")
    if not isinstance(state, list) or len(state) != 1 or not is_same_value(action, state[0]):
        raise CheckFailedError(f"a state with the {LARGE:,} numbers that were sent", shown(message))


def _keys_unknown(talk: Conversation) -> None:
    talk.receive_command("init")
    talk.send({"response": "ready", "policy_version": 3, "more": {"a": [1, None]}})
    talk.receive_command("update")
    talk.send({"more": np.array([1], np.float32), "response": "action", "data": 7, "policy_version": 3})
    talk.receive_command("update", state=[7])


def _keys_order(talk: Conversation) -> None:
    talk.begin()
    talk.send({"data": 7, "response": "action"})
    talk.receive_command("update", state=[7])


def _keys_twice(talk: Conversation) -> None:
    talk.begin()
    version = 4  # bytes
    payload = encode({"response": "action", "data": 6}) + encode({"data": 7})[version:]
    talk.send_bytes(frame(payload))
    talk.receive_command("update", state=[7])


def _error_update(talk: Conversation) -> None:
    talk.begin()
    for message in ("state has the wrong shape", "Größe 世界"):
        talk.send({"response": "error", "message": message})
        talk.receive_command("update", state=["error", message])
    talk.answer(7)
    talk.receive_command("update", state=[7])


def _error_reset(talk: Conversation) -> None:
    talk.begin()
    talk.answer("reset")
    talk.receive_command("reset")
    talk.send({"response": "error", "message": "can't reset agent"})
    talk.receive_command("update", state=["error", "can't reset agent"])


def _error_metric(talk: Conversation) -> None:
    talk.begin()
    talk.answer("metric")
    talk.receive_command("update_metrics")
    talk.send({"response": "error", "message": "a metric has a name"})
    talk.receive_command("update", state=["error", "a metric has a name"])


def _error_without_message(talk: Conversation) -> None:
    talk.begin()
    talk.send({"response": "error"})
    message = talk.receive("an update with the state ['error', <text>]")
    state = message.get("state")
    if not isinstance(state, list) or len(state) != 2 or state[0] != "error" or not isinstance(state[1], str):
        raise CheckFailedError("an update with the state ['error', <text>]", shown(message))


def _closed(talk: Conversation) -> None:
    talk.begin()
    talk.end_sending()
    talk.expect_end()


def _closed_within_header(talk: Conversation) -> None:
    _closed_after(talk, 1)


def _closed_within_payload(talk: Conversation) -> None:
    _closed_after(talk, -3)


def _closed_before_comma(talk: Conversation) -> None:
    _closed_after(talk, -1)


def _closed_after(talk: Conversation, end: int) -> None:
    talk.begin()
    talk.send_bytes(frame(encode({"response": "action", "data": 7}))[:end])
    time.sleep(PAUSE)
    talk.end_sending()
    talk.expect_end()


def _two_answers(talk: Conversation) -> None:
    talk.begin()
    talk.send_bytes(2 * frame(encode({"response": "action", "data": 7})))
    talk.expect_end()


_SCRIPTS = (
    *(_init, _init_error, _first_update, _update, _terminal, _reset, _metric, _end, _turns),
    *(_frame_bytes, _frame_parts, _frame_header, _frame_large, _keys_unknown, _keys_order, _keys_twice),
    *(_error_update, _error_reset, _error_metric, _error_without_message),
    *(_closed, _closed_within_header, _closed_within_payload, _closed_before_comma, _two_answers),
)


def _answer(vector: Vector, talk: Conversation) -> None:
    """Send the action in ``vector``; the client must return its value as the next state."""
    talk.begin()
    talk.send_bytes(vector.framed)
    sent = vector.message["data"]
    message = talk.receive(f"an update with the state {shown([sent])}")
    state: Any = message.get("state")
    items = state.tolist() if isinstance(state, np.ndarray) else state
    if not isinstance(items, list) or len(items) != 1:
        raise CheckFailedError(f"an update with the state {shown([sent])}", shown(message))
    echoed = state[0]
    if not is_same_value(sent, echoed):
        raise CheckFailedError(shown(sent), shown(echoed))


def _refused(vector: Refused, talk: Conversation) -> None:
    """Answer with the invalid frame in ``vector``; the client must close the connection."""
    talk.begin()
    talk.send_bytes(vector.framed)
    try:
        talk.expect_end()
    except CheckFailedError as error:
        raise CheckFailedError(f"the end of the connection after {vector.reason}", error.received) from None
