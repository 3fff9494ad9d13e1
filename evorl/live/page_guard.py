"""Access control of the live page: addresses, tokens, host names and rate limits.

Without a token, the page is served to this machine only. With a token, requests send it as ``Authorization: Bearer``; a
browser sends it once in the URL and receives a cookie. The header ``Host`` must be an IP address, ``localhost`` or a
configured name; this prevents DNS rebinding. Pages of other origins cannot send data.
"""

from __future__ import annotations

import collections
import dataclasses
import ipaddress
import re
import secrets
import threading
import time
from collections.abc import Callable

from evorl.sockets.access import is_same_secret, require_token_beyond_this_machine

SHORTEST_TOKEN = 16  # minimum number of characters of a token
MAX_CLIENTS = 10_000  # maximum number of clients with tracked rates
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")


class Refused(Exception):
    """Raised for a rejected request, with a message for the client.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class PageGuard:
    """Access checks that every request must pass.

    Attributes:
        bind: address on which the server listens.
        token: access token that requests must send; ``None`` for no authentication.
        hosts: accepted host names of this machine, in addition to ``localhost`` and all IP addresses.
        session: value of the cookie for browsers that have sent the token; valid for this process only.

    Raises:
        ValueError: other machines could connect without a token, or the token is too short or not printable ASCII.
    """

    bind: str = "127.0.0.1"
    token: str | None = None
    hosts: tuple[str, ...] = ()
    session: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def __post_init__(self) -> None:
        if self.token is None:
            advice = f"set token=new, or token=<at least {SHORTEST_TOKEN} characters>"
            require_token_beyond_this_machine(self.bind, None, f"bind={self.bind}", advice)
        elif len(self.token) < SHORTEST_TOKEN or not self.token.isascii() or not self.token.isprintable():
            raise ValueError(
                f"the token must consist of at least {SHORTEST_TOKEN} characters, all printable ASCII, got "
                f"{len(self.token)} characters: token=new generates a token."
            )

    def check_host(self, host: str | None) -> None:
        """Raise ``Refused`` if the header ``Host`` is not an accepted name of this machine."""
        name = _without_port(host or "")
        if name in ("localhost", *(known.lower() for known in self.hosts)) or _is_address(name):
            return
        raise Refused(421, f"The host {name[:80]!r} is not accepted: use localhost, an IP address or a name in hosts=.")

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Raise ``Refused`` if a page of another origin sent the request, by the header ``Origin`` of browsers."""
        if origin is not None and origin.partition("://")[2].lower() != (host or "").lower():
            raise Refused(403, f"Pages of other origins, here {origin[:80]!r}, may not send requests to this page.")

    def knows(self, authorization: str | None, cookie: str | None = None) -> bool:
        """Return True if a request has the token or the session cookie, or if no token is set."""
        if self.token is None:
            return True
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(token.strip()):
            return True
        return cookie is not None and is_same_secret(cookie, self.session)

    def is_token(self, shown: str) -> bool:
        """Return True if a client's token is correct."""
        return is_same_secret(shown, self.token)


class RateLimit:
    """Rate limit per client: a token bucket.

    Args:
        rate: allowed units, such as points, per second.
        burst: maximum number of units at once.
        clock: returns the time in seconds.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self._clock = rate, burst, clock
        self._lock = threading.Lock()
        self._left: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    def take(self, client: str, number: float = 1.0) -> None:
        """Count ``number`` units from a client; above the limit, raise ``Refused`` with the time until a retry."""
        with self._lock:
            now = self._clock()
            left, since = self._left.pop(client, (self.burst, now))
            left = min(self.burst, left + (now - since) * self.rate)
            fits = number <= left
            self._left[client] = (left - number if fits else left, now)
            if len(self._left) > MAX_CLIENTS:
                self._left.popitem(last=False)  # the least recently active client
        if not fits:
            wait = (min(number, self.burst) - left) / self.rate
            raise Refused(
                429,
                f"Too many points: the rate limit per client is {self.rate:g} per second and {self.burst:g} at once, "
                f"and this request adds {number:g}. Retry in {wait:.1f} s with at most {self.burst:g}.",
            )


def _without_port(host: str) -> str:
    """Return the name or address of a ``Host`` header in lower case; empty if the header is malformed."""
    host = host.strip().lower()
    if _is_address(host):
        return host
    match = _HOST.fullmatch(host)
    if match is None or int(match[3] or 0) > 65_535:
        return ""
    return match[1] or match[2]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
