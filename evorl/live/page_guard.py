"""Access to the live page: addresses, tokens, names of hosts, rates.

Without a token only this machine is served. With one, a request tells it in ``Authorization: Bearer``, or a browser
once in the address, for which it gets a cookie. The header ``Host`` must be an address of digits, ``localhost`` or a
name that was given: a stranger's name that leads here (DNS rebinding) is none. A page of another origin cannot send.
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

SHORTEST_TOKEN = 16  # characters
MOST_CLIENTS = 10_000  # whose rates are remembered
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")


class Refused(Exception):
    """A request that is not answered.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class PageGuard:
    """Checks of every request.

    Attributes:
        bind: the address that is listened on.
        token: that a request has to tell; ``None`` for none.
        hosts: names of this machine by which it may be asked, besides ``localhost`` and addresses.
        session: cookie of browsers that have shown the token; of this process only.

    Raises:
        ValueError: the address is not this machine's own, and there is no token; or the token is short.
    """

    bind: str = "127.0.0.1"
    token: str | None = None
    hosts: tuple[str, ...] = ()
    session: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def __post_init__(self) -> None:
        if self.token is None:
            remedy = f"give token=new, or token=<at least {SHORTEST_TOKEN} characters>"
            require_token_beyond_this_machine(self.bind, None, f"bind={self.bind}", remedy)
        elif len(self.token) < SHORTEST_TOKEN or not self.token.isascii() or not self.token.isprintable():
            raise ValueError(
                f"the token has at least {SHORTEST_TOKEN} printable ASCII characters, got {len(self.token)}: "
                "token=new makes a good one."
            )

    def check_host(self, host: str | None) -> None:
        """Look at the header ``Host``.

        Raises:
            Refused: it is no name of this machine.
        """
        name = _without_port(host or "")
        if name in ("localhost", *(known.lower() for known in self.hosts)) or _is_address(name):
            return
        raise Refused(421, f"This page is not at {name[:80]!r}: ask by localhost or address, or start it with hosts=.")

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Look at the header ``Origin``, which browsers send with what a page sends.

        Raises:
            Refused: it is another page than ours.
        """
        if origin is not None and origin.partition("://")[2].lower() != (host or "").lower():
            raise Refused(403, "Pages of other origins may not send anything here.")

    def knows(self, authorization: str | None, cookie: str | None = None) -> bool:
        """Return whether a request shows the token, or the cookie that was given for it; in constant time."""
        if self.token is None:
            return True
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(token.strip()):
            return True
        return cookie is not None and is_same_secret(cookie, self.session)

    def is_token(self, shown: str) -> bool:
        """Return whether a client's token is the one of the page."""
        return is_same_secret(shown, self.token)


class RateLimit:
    """So many of something in a second for each client, and some more at once.

    Args:
        rate: in a second.
        burst: at once.
        clock: in seconds.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self._clock = rate, burst, clock
        self._lock = threading.Lock()
        self._left: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    def take(self, client: str, number: float = 1.0) -> None:
        """Count what a client sends.

        Raises:
            Refused: it is too much; says when to come again.
        """
        with self._lock:
            now = self._clock()
            left, since = self._left.pop(client, (self.burst, now))
            left = min(self.burst, left + (now - since) * self.rate)
            fits = number <= left
            self._left[client] = (left - number if fits else left, now)
            if len(self._left) > MOST_CLIENTS:
                self._left.popitem(last=False)  # who was silent longest
        if not fits:
            wait = (min(number, self.burst) - left) / self.rate
            raise Refused(
                429,
                f"{number:g} at once are too many now: at most {self.rate:g} a second are taken, {self.burst:g} at "
                f"once; come again in {wait:.1f} s.",
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
