"""Settings of a server for simulators."""

from __future__ import annotations

import os
from typing import Annotated

from evorl.config.values import require_positive
from evorl.fields import Within
from evorl.sockets.access import host_and_port, require_token_beyond_this_machine
from evorl.sockets.socket_server import REQUEST_SECONDS
from evorl.types import PyTreeNode, pytree_field

_ADVICE = "set serve.token=... here and the same token in all clients"


class ServeSettings(PyTreeNode):
    """Settings of a server for simulators: addresses, access, limits, profiling. Invalid values raise ``ValueError``.

    Attributes:
        bind: address and port for the RLX protocol over TCP.
        web: address and port for WebSocket, /healthz, /readyz and /metrics; needs the extra serve; null disables them.
        token: access token, at least 8 characters, that clients send with init; required if other machines can connect.
            env:NAME reads it from an environment variable; null disables authentication.
        cert: PEM file of a TLS certificate, used with key; null disables TLS.
        key: PEM file of the private key of cert.
        max_clients: maximum number of simultaneous simulators.
        max_frame: maximum size of a message in bytes.
        hello_seconds: timeout in seconds for a client's init message, and for the first complete request of a web
            client (not of robot clients at `/`).
        idle_seconds: seconds without a message after which a client that does not wait for an action is disconnected;
            0 disables the timeout.
        max_messages_per_second: maximum message rate of one client; 0 for no limit.
        max_policy_lag: maximum age, in updates, of the policy that collected the data of a batch; null for 1, or for no
            limit if the algorithm can learn from older policies. With 0 all training clients wait for each update.
        eval_seconds: maximum seconds that an evaluation waits for episodes of clients that act greedily (exploit=true).
        profile_dir: folder for trace.json, a Chrome trace of the server's operations; null disables profiling.
    """

    bind: str = pytree_field(static=True, default="127.0.0.1:7001")
    web: str | None = pytree_field(static=True, default=None)
    token: str | None = pytree_field(static=True, default=None)
    cert: str | None = pytree_field(static=True, default=None)
    key: str | None = pytree_field(static=True, default=None)
    max_clients: int = pytree_field(static=True, default=256)
    max_frame: int = pytree_field(static=True, default=2**24)
    hello_seconds: Annotated[float, Within("(0, inf)")] = pytree_field(static=True, default=REQUEST_SECONDS)
    idle_seconds: Annotated[float, Within("[0, inf)")] = pytree_field(static=True, default=600.0)
    max_messages_per_second: Annotated[float, Within("[0, inf)")] = pytree_field(static=True, default=0.0)
    max_policy_lag: Annotated[float | None, Within("[0, inf)")] = pytree_field(static=True, default=None)
    eval_seconds: Annotated[float, Within("(0, inf)")] = pytree_field(static=True, default=60.0)
    profile_dir: str | None = pytree_field(static=True, default=None)

    def __post_init__(self) -> None:
        require_positive(self, "max_clients", "max_frame")
        if self.max_policy_lag is not None and (self.max_policy_lag < 0 or self.max_policy_lag % 1):
            raise ValueError(f"serve.max_policy_lag must be an integer, 0 or more, got {self.max_policy_lag}.")
        if (self.cert is None) != (self.key is None):
            missing = "cert" if self.cert is None else "key"
            raise ValueError(f"serve.{missing} is missing: set both serve.cert and serve.key to files, or neither.")
        if self.token is not None and self.token.startswith("env:"):
            name = self.token.removeprefix("env:")
            if name not in os.environ:
                raise ValueError(
                    f"serve.token=env:{name} refers to an environment variable that is not set: export {name}=..."
                )
            object.__setattr__(self, "token", os.environ[name])
        if self.token is not None and len(self.token) < 8:
            raise ValueError(
                f"serve.token must have at least 8 characters, got {len(self.token)}: shorter ones can be guessed."
            )
        for name in ("bind", "web"):
            if (address := getattr(self, name)) is not None:
                host, _ = host_and_port(address, f"serve.{name}")
                require_token_beyond_this_machine(host, self.token, f"serve.{name}={address}", _ADVICE)
