"""Downloads a file over HTTPS into memory, with limits on size, time and number of redirections.

Plain HTTP is accepted only from this machine, because others on the network could replace the file.
"""

from __future__ import annotations

import http.client
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import urljoin, urlsplit

from evorl.config.command_lines import is_this_machine
from evorl.runs.files import RunFolderError

SECONDS = 30.0  # time limit for a connection and for each part of a response
TOTAL_SECONDS = 600.0
MAX_REDIRECTIONS = 5
_PART = 2**16
_AUTHORIZATION = "Authorization"
T = TypeVar("T")


def download(address: str, max_bytes: int, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the content of the file at an address.

    Args:
        address: ``https://...``, or ``http://...`` of this machine.
        max_bytes: maximum size of the file.
        headers: additional headers of the request; ``Authorization`` is not sent to other servers after a redirection.

    Raises:
        RunFolderError: the address, or one that it redirects to, is not accepted; the server cannot be reached,
            reports an error or sends an incomplete file; or a limit is exceeded.
    """
    is_local = check_address(address)
    return within_time(address, lambda: _download(address, max_bytes, headers or {}, is_local))


def within_time(address: str, call: Callable[[], T]) -> T:
    """Return the result of ``call()``, a download from ``address`` that must finish within ``TOTAL_SECONDS``.

    A socket's timeout restarts with each received byte, so a server that sends one byte at a time could delay a
    download forever. Therefore ``call`` runs in another thread, which is abandoned at the time limit.

    Raises:
        RunFolderError: the call took longer than ``TOTAL_SECONDS``.
        BaseException: the error that the call raised.
    """
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put((call(), None))
        except BaseException as error:  # raised below, in the thread of the caller
            results.put((None, error))

    threading.Thread(target=work, name="evorl-download", daemon=True).start()
    try:
        result, error = results.get(timeout=TOTAL_SECONDS)
    except queue.Empty:
        raise _too_slow(address) from None
    if error is not None:
        raise error
    return cast(T, result)


def _too_slow(address: str) -> RunFolderError:
    return RunFolderError(f"{address} was not downloaded within {TOTAL_SECONDS:g} s: try again, or use a local copy.")


def _download(address: str, max_bytes: int, headers: Mapping[str, str], is_local: bool) -> bytes:
    end = time.monotonic() + TOTAL_SECONDS
    opener = urllib.request.OpenerDirector()
    for handler in (
        # Requests to this machine must not pass through a proxy.
        urllib.request.ProxyHandler({} if is_local else None),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirections(),
    ):
        opener.add_handler(handler)
    headers = {"User-Agent": "evorl", **headers, "Accept-Encoding": "identity"}
    request = urllib.request.Request(address, headers=headers)
    try:
        with opener.open(request, timeout=SECONDS) as response:
            return _read(response, address, max_bytes, end)
    except RunFolderError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        raise RunFolderError(f"{address} was not downloaded: HTTP status {error.code}. Check the address.") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise RunFolderError(f"{address} was not downloaded: {str(reason)[:200]}. Check the address.") from error


def check_address(address: str, after: str | None = None) -> bool:
    """Check that a file may be downloaded from an address; return True if the address is on this machine.

    Args:
        address: the address.
        after: address that redirected to ``address``, ``None`` for none; HTTPS may redirect only to HTTPS.

    Raises:
        RunFolderError: ``address`` is malformed, has a user or password, or is neither HTTPS nor HTTP of this machine.
    """
    shown = address if after is None else f"{after} redirects to {address}, which"
    try:
        parts = urlsplit(address)
        host, is_private = parts.hostname or "", parts.username is not None or parts.password is not None
        parts.port  # noqa: B018  raises ValueError for a wrong port
    except ValueError as error:
        raise RunFolderError(f"{shown} is not an address: {error}.") from error
    if is_private:
        raise RunFolderError(f"{parts.scheme}://{host}: remove the user name and password, which are not accepted.")
    if not host or parts.scheme not in ("https", "http"):
        raise RunFolderError(f"{shown} is not an HTTPS address: expected https://<host>/<file>.")
    is_local = is_this_machine(host)
    if parts.scheme == "http" and not (is_local and (after is None or after.startswith("http://"))):
        raise RunFolderError(
            f"{shown} uses plain HTTP, accepted only from this machine and without a redirection from https://: "
            "use https://, or download the file and pass its path."
        )
    return is_local


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Follows up to ``MAX_REDIRECTIONS`` redirections, if ``check_address`` accepts their addresses."""

    max_redirections = MAX_REDIRECTIONS
    max_repeats = MAX_REDIRECTIONS

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        fp.close()  # the base class would read the whole body into memory
        if new := headers.get("location") or headers.get("uri"):
            check_address(urljoin(req.full_url, new), req.full_url)
        return super().http_error_302(req, fp, code, msg, headers)

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            new.remove_header(_AUTHORIZATION)
        return new

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _read(response: Any, address: str, max_bytes: int, end: float) -> bytes:
    too_large = RunFolderError(f"{address} has more than {max_bytes:,} bytes, so it is not downloaded.")
    length = response.headers.get("Content-Length")
    if length is not None and length.isdecimal() and int(length) > max_bytes:
        raise too_large
    data = bytearray()
    while part := response.read1(_PART):  # returns after one packet, so that a slow server cannot delay the checks
        data += part
        if len(data) > max_bytes:
            raise too_large
        if time.monotonic() > end:
            raise _too_slow(address)
    if length is not None and length.isdecimal() and len(data) < int(length):
        raise RunFolderError(f"{address} was cut off after {len(data):,} of {int(length):,} bytes: try again.")
    return bytes(data)
