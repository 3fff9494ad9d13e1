"""The Python client passes all checks, and each planted fault fails the check meant for it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from evorl.serving import client, rlx
from evorl.serving.client import AgentProxy, AgentProxyException
from evorl.serving.conformance import run_checks
from evorl.serving.conformance_checks import all_checks
from tests.support.doc_pages import ROOT
from tests.support.faulty_readers import (
    EndsAtComma,
    FirstAnswerOnly,
    OneReadOneFrame,
    TakesZeros,
    TrustsComma,
    WaitsForEver,
)

CHECKS = {check.name: check for check in all_checks()}


def load_echo() -> Callable[[AgentProxy], None]:
    """Load the echo program of the examples."""
    spec = importlib.util.spec_from_file_location("echo", ROOT / "examples" / "remote" / "echo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.echo


ECHO = load_echo()


def failures(names: Iterable[str], make: type[AgentProxy] = AgentProxy, seconds: float = 5.0) -> dict[str, str]:
    """Return the failures by check, of an echo program that runs around a new client thread for each check."""

    def run(address: tuple[str, int]) -> None:
        proxies.append(proxy := make(address))
        with contextlib.suppress(AgentProxyException, ValueError, TypeError, KeyError):  # as in a program that crashes
            try:
                ECHO(proxy)
            finally:
                proxy.disconnect()

    threads: list[threading.Thread] = []
    proxies: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def start() -> Callable[[], bool]:
            threads.append(threading.Thread(target=run, args=(listener.getsockname(),), daemon=True))
            threads[-1].start()
            return threads[-1].is_alive

        results = list(run_checks([CHECKS[name] for name in names], listener, seconds, start))
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    for proxy in proxies:  # of clients that stay connected
        for held in (proxy._socket, getattr(proxy, "kept", None)):
            if held is not None:
                held.close()
    return {result.name: result.failure for result in results if result.failure}


def test_the_python_client_passes_every_check() -> None:
    assert failures(CHECKS) == {}


class SendsIntegerFlag(AgentProxy):
    def init(self, exploit: bool = False, **more: Any) -> Any:
        return self._ask({"command": "init", "exploit": int(exploit)})


class IgnoresInitErrors(AgentProxy):
    def init(self, exploit: bool = False, **more: Any) -> Any:
        with contextlib.suppress(AgentProxyException):
            super().init(exploit)


class RewardsTheStart(AgentProxy):
    def update(self, reward: Any, state: Any, terminal: bool = False, **more: Any) -> Any:
        return super().update(reward or 0.0, state, terminal)


class RewardsTheRestart(AgentProxy):
    last = None

    def update(self, reward: Any, state: Any, terminal: bool = False, **more: Any) -> Any:
        self.last, reward = reward, self.last if reward is None else reward
        return super().update(reward, state, terminal)


class ForgetsRewards(AgentProxy):
    def update(self, reward: Any, state: Any, terminal: bool = False, **more: Any) -> Any:
        return super().update(None, state, terminal)


class SendsFlatState(AgentProxy):
    def update(self, reward: Any, state: Any, terminal: bool = False, **more: Any) -> Any:
        return super().update(reward, state[0] if state else [], terminal)


class NeverTerminal(AgentProxy):
    def update(self, reward: Any, state: Any, terminal: bool = False, **more: Any) -> Any:
        return super().update(reward, state)


class SkipsReset(AgentProxy):
    def reset(self) -> Any:
        return "done"


class SendsBareMetric(AgentProxy):
    def send_metric(self, method: str, name: str, y: Any, x: Any = None) -> Any:
        return self._ask({"command": "update_metrics", "data": [{"name": name, "value": y}]})


class StaysConnected(AgentProxy):
    """Client that keeps the socket of an abandoned connection."""

    kept: Any = None

    def disconnect(self) -> None:
        self.kept, self._socket = self._socket or self.kept, None


class AsksTwice(AgentProxy):
    def update(self, reward: Any, state: Any, terminal: bool = False, **more: Any) -> Any:
        assert self._socket is not None
        self._socket.sendall(rlx.frame(rlx.encode({"command": "update", "reward": reward, "state": state})))
        return super().update(reward, state, terminal)


class EndsAtErrors(AgentProxy):
    def _ask(self, message: dict[str, Any]) -> Any:
        try:
            return super()._ask(message)
        except AgentProxyException:
            self.disconnect()
            raise


class HidesErrors(AgentProxy):
    def _ask(self, message: dict[str, Any]) -> Any:
        try:
            return super()._ask(message)
        except AgentProxyException:
            return None


class NeedsErrorText(AgentProxy):
    def _ask(self, message: dict[str, Any]) -> Any:
        try:
            return super()._ask(message)
        except AgentProxyException as error:
            if str(error).startswith("unknown error"):
                raise KeyError("message") from None
            raise


PROXIES = [
    ("init", SendsIntegerFlag),
    ("init-error", IgnoresInitErrors),
    ("first-update", RewardsTheStart),
    ("terminal", RewardsTheRestart),
    ("update", ForgetsRewards),
    ("update", SendsFlatState),
    ("terminal", NeverTerminal),
    ("reset", SkipsReset),
    ("metric", SendsBareMetric),
    ("end", StaysConnected),
    ("closed", StaysConnected),
    ("refused-version-2", StaysConnected),
    ("turns", AsksTwice),
    ("error-update", EndsAtErrors),
    ("error-reset", HidesErrors),
    ("error-metric", HidesErrors),
    ("error-without-message", NeedsErrorText),
]


@pytest.mark.parametrize(("name", "proxy"), PROXIES, ids=[f"{name}-{proxy.__name__}" for name, proxy in PROXIES])
def test_a_fault_of_the_conversation(name: str, proxy: type[AgentProxy]) -> None:
    assert list(failures([name], proxy, 0.3)) == [name]


READERS = [
    ("frame-bytes", OneReadOneFrame),
    ("frame-header", OneReadOneFrame),
    ("frame-large", OneReadOneFrame),
    ("frame-parts", EndsAtComma),
    ("refused-comma-missing", TrustsComma),
    ("refused-length-zeros", TakesZeros),
    ("refused-length-greatest", WaitsForEver),
    ("refused-length-ten-digits", WaitsForEver),
    ("two-answers", FirstAnswerOnly),
]


@pytest.mark.parametrize(("name", "reader"), READERS, ids=[f"{name}-{reader.__name__}" for name, reader in READERS])
def test_a_fault_of_the_frames(name: str, reader: type[rlx.FrameReader], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FrameReader", reader)
    proxy = functools.partial(AgentProxy, timeout=1.0)
    assert list(failures([name], proxy, 0.3)) == [name]  # pyright: ignore[reportArgumentType]


def changed(change: Callable[[Any], Any]) -> Callable[..., dict[str, Any]]:
    """Return a decoder that changes the data of every response."""

    def decode(payload: bytes, limits: Any = None) -> dict[str, Any]:
        message = rlx.decode(payload)
        return {**message, "data": change(message["data"])} if "data" in message else message

    return decode


def at(kind: type, change: Callable[[Any], Any]) -> Callable[..., dict[str, Any]]:
    return changed(lambda data: change(data) if type(data) is kind else data)


def lenient(payload: bytes, limits: Any = None) -> dict[str, Any]:
    """Decode without checking the version."""
    return rlx.decode(struct.pack("<I", rlx.VERSION) + payload[4:])


def forgiving(payload: bytes, limits: Any = None) -> dict[str, Any]:
    """Decode invalid messages as a response without data."""
    try:
        return rlx.decode(payload)
    except rlx.ProtocolError:
        return {"response": "action", "data": None}


def strict(payload: bytes, limits: Any = None) -> dict[str, Any]:
    """Decode only the keys of a plain response, in their order."""
    message = rlx.decode(payload)
    if list(message) not in (["response"], ["response", "data"]):
        raise rlx.ProtocolError("unknown key")
    return message


def first_of_twice(payload: bytes, limits: Any = None) -> dict[str, Any]:
    """Decode the first of two equal keys."""
    body = rlx._Body(bytes(payload), rlx.Limits())
    body.size()
    message: dict[str, Any] = {}
    while body.position < len(body.data):
        key, value = body.text(), body.value(0)
        message.setdefault(key, value)
    return message


def without(*kinds: int) -> Callable[..., dict[str, Any]]:
    """Return a decoder that rejects some types."""

    def decode(payload: bytes, limits: Any = None) -> dict[str, Any]:
        at = payload.find(b"data")
        if at > 0 and payload[at + 4] in kinds:
            raise rlx.ProtocolError("unknown type")
        return rlx.decode(payload)

    return decode


DECODERS = [
    ("answer-int4-least", at(int, abs)),
    ("answer-int4-greatest", at(int, lambda data: data & 0xFFFF)),
    ("answer-int64-greatest", at(int, float)),
    ("answer-int64-small", without(rlx.INT64)),
    ("answer-double", at(float, lambda data: -data)),
    ("answer-double-large", at(float, lambda data: float(np.clip(data, -3e38, 3e38)))),
    ("answer-double-tiny", at(float, lambda data: float(np.float32(data)))),
    ("answer-boolean-true", at(bool, int)),
    ("answer-boolean-false", at(bool, lambda data: None)),
    ("answer-string-utf8", at(str, lambda data: data.encode().decode("latin-1"))),
    ("answer-string-empty", at(str, lambda data: data or None)),
    ("answer-string-long", at(str, lambda data: data[:255])),
    ("answer-null", at(type(None), lambda data: 0)),
    ("answer-none", without(rlx.NONE)),
    ("answer-uint4", at(int, lambda data: struct.unpack("<i", struct.pack("<I", data))[0])),
    ("answer-list-empty", at(list, lambda data: data or None)),
    ("answer-list-mixed", at(list, lambda data: [str(item) for item in data])),
    ("answer-list-nested", at(list, lambda data: [*data[0], *data[1]])),
    ("answer-dict-empty", without(rlx.DICT)),
    ("answer-dict-nested", at(dict, lambda data: {**data, "right": None})),
    ("answer-ndarray-matrix", at(np.ndarray, lambda data: data.T)),
    ("answer-ndarray-cube", at(np.ndarray, lambda data: data.ravel())),
    ("answer-ndarray-scalar", at(np.ndarray, lambda data: data[None])),
    ("answer-ndarray-empty", at(np.ndarray, lambda data: [0.0])),
    ("answer-ndarray-bool", without(rlx.NDARRAY)),
    *((f"answer-ndarray-{name}", at(np.ndarray, lambda data: data.byteswap())) for name in ("int16", "uint32")),
    *((f"answer-ndarray-{name}", at(np.ndarray, lambda data: -data)) for name in ("float16", "float32", "float64")),
    ("answer-ndarray-int8", at(np.ndarray, lambda data: data.view("uint8"))),
    ("answer-image-L", at(np.ndarray, lambda data: data.T)),
    ("answer-image-RGB", at(np.ndarray, lambda data: data[..., ::-1])),
    ("answer-image-RGBA", at(np.ndarray, lambda data: data[..., :3])),
    ("refused-version-0", lenient),
    ("refused-version-2", lenient),
    *(
        (name, forgiving)
        for name in CHECKS
        if name.startswith("refused-") and not {"length", "comma"} & {*name.split("-")}
    ),
    ("keys-unknown", strict),
    ("keys-order", strict),
    ("keys-twice", first_of_twice),
]


@pytest.mark.parametrize(("name", "decode"), DECODERS, ids=[f"{i}-{name}" for i, (name, _) in enumerate(DECODERS)])
def test_a_fault_of_the_decoder(name: str, decode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "decode", decode)
    assert list(failures([name], seconds=0.3)) == [name]


def test_every_kind_of_check_has_a_planted_fault() -> None:
    caught = {name for name, _ in (*PROXIES, *READERS, *DECODERS)}
    missing = {name for name in CHECKS if name not in caught}
    assert {name.partition("-")[0] for name in CHECKS} == {name.partition("-")[0] for name in caught}, missing
