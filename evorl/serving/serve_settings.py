"""Settings of a server that simulators connect to."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from evorl.config.nodes import node_from_config
from evorl.config.values import checked_mapping, require_positive
from evorl.sockets.access import host_and_port, require_token_beyond_this_machine
from evorl.sockets.socket_server import REQUEST_SECONDS
from evorl.types import PyTreeNode, pytree_field

_REMEDY = "give serve.token=..., the same to all clients"


class ServeSettings(PyTreeNode):
    """Addresses and limits of a server.

    Attributes:
        bind: address and port for the RLX protocol over TCP.
        web: address and port for WebSocket, /healthz and /metrics (extra serve); null for none.
        token: what clients show in init, needed where others than this machine can connect; env:NAME reads a variable.
        cert: file of a TLS certificate, with key; null for no TLS.
        key: file of its private key.
        max_clients: simulators at a time.
        max_frame: bytes of a message.
        hello_seconds: that a client may take until its init, and a web client until its request is complete.
        idle_seconds: that a client may be silent; 0 for ever.
        max_messages_per_second: of one client; 0 for any.
        max_policy_lag: the most updates that a policy may be old when what it did is learned from; null for 1, or any
            where the algorithm corrects for it. With 0 everybody waits for the update.
        eval_seconds: that an evaluation waits for episodes of clients that exploit.
        profile_dir: folder for where the server's time goes, as ``trace.json``; null for none.
    """

    bind: str = pytree_field(static=True, default="127.0.0.1:7001")
    web: str | None = pytree_field(static=True, default=None)
    token: str | None = pytree_field(static=True, default=None)
    cert: str | None = pytree_field(static=True, default=None)
    key: str | None = pytree_field(static=True, default=None)
    max_clients: int = pytree_field(static=True, default=256)
    max_frame: int = pytree_field(static=True, default=2**24)
    hello_seconds: float = pytree_field(static=True, default=REQUEST_SECONDS)
    idle_seconds: float = pytree_field(static=True, default=600.0)
    max_messages_per_second: float = pytree_field(static=True, default=0.0)
    max_policy_lag: float | None = pytree_field(static=True, default=None)
    eval_seconds: float = pytree_field(static=True, default=60.0)
    profile_dir: str | None = pytree_field(static=True, default=None)

    ranges: ClassVar[dict[str, str]] = {
        "hello_seconds": "(0, inf)",
        "idle_seconds": "[0, inf)",
        "max_messages_per_second": "[0, inf)",
        "max_policy_lag": "[0, inf)",
        "eval_seconds": "(0, inf)",
    }

    def __post_init__(self) -> None:
        require_positive(self, "max_clients", "max_frame")
        if self.max_policy_lag is not None and (self.max_policy_lag < 0 or self.max_policy_lag % 1):
            raise ValueError(f"serve.max_policy_lag must be a whole number, 0 or more, got {self.max_policy_lag}.")
        if (self.cert is None) != (self.key is None):
            raise ValueError("serve.cert and serve.key belong together: give the files of both, or none.")
        if self.token is not None and self.token.startswith("env:"):
            name = self.token.removeprefix("env:")
            if name not in os.environ:
                raise ValueError(f"serve.token=env:{name} reads a variable that is not set: export {name}=...")
            object.__setattr__(self, "token", os.environ[name])
        if self.token is not None and len(self.token) < 8:
            raise ValueError("serve.token must have 8 characters at least: others would guess it.")
        for name in ("bind", "web"):
            if (address := getattr(self, name)) is not None:
                host, _ = host_and_port(address, f"serve.{name}")
                require_token_beyond_this_machine(host, self.token, f"serve.{name}={address}", _REMEDY)


def serve_settings(config: Any) -> ServeSettings:
    """The settings that ``serve`` of a config describes.

    Raises:
        ValueError: a key or a value cannot be; in words.
    """
    return node_from_config(ServeSettings, checked_mapping(config, "serve"), "serve")
