"""Downloads a file over HTTPS into memory, with limits on its size, its time and its redirections.

Plain HTTP is accepted only from this machine, because anyone on the way could replace the file.
"""

from __future__ import annotations

import http.client
import ipaddress
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urljoin, urlsplit

from evorl.runs.files import RunFolderError

SECONDS = 30.0  # time limit for a connection and for each part of a response
TOTAL_SECONDS = 600.0
MAX_REDIRECTIONS = 5
_PART = 2**16


def download(address: str, max_bytes: int) -> bytes:
    """Return the file at an address.

    Args:
        address: ``https://...``, or ``http://`` of this machine.
        max_bytes: size limit.

    Raises:
        RunFolderError: the address, or one that it redirects to, is not accepted; the server cannot be reached or
            reports an error; or a limit is exceeded.
    """
    is_local = check_address(address)
    opener = urllib.request.OpenerDirector()
    for handler in (
        # A proxy must not be asked for files of this machine.
        urllib.request.ProxyHandler({} if is_local else None),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirections(),
    ):
        opener.add_handler(handler)
    request = urllib.request.Request(address, headers={"User-Agent": "evorl", "Accept-Encoding": "identity"})
    end = time.monotonic() + TOTAL_SECONDS
    try:
        with opener.open(request, timeout=SECONDS) as response:
            return _read(response, address, max_bytes, end)
    except RunFolderError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        raise RunFolderError(f"{address} was not downloaded: the server answered {error.code}.") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise RunFolderError(f"{address} was not downloaded: {str(reason)[:200]}.") from error


def check_address(address: str, after: str | None = None) -> bool:
    """Check that a file may be downloaded from an address, and return True if it is of this machine.

    Args:
        address: the address.
        after: the address that redirects to it; ``None`` if the user named it.

    Raises:
        RunFolderError: it is neither HTTPS nor HTTP of this machine, has a password, or HTTPS redirects to HTTP.
    """
    shown = address if after is None else f"{after} redirects to {address}, which"
    try:
        parts = urlsplit(address)
        host, is_private = parts.hostname or "", parts.username is not None or parts.password is not None
        parts.port  # noqa: B018  raises ValueError for a wrong port
    except ValueError as error:
        raise RunFolderError(f"{shown} is not an address: {error}.") from error
    if is_private:
        raise RunFolderError(f"{parts.scheme}://{host} was given with a user name or password: leave them out.")
    if not host or parts.scheme not in ("https", "http"):
        raise RunFolderError(f"{shown} is not an address of HTTPS: expected https://<host>/<file>.")
    is_local = _is_this_machine(host)
    if parts.scheme == "http" and not (is_local and (after is None or after.startswith("http://"))):
        raise RunFolderError(
            f"{shown} uses plain HTTP, so that others could replace the file on its way: use https://, or download the "
            "file and name its path."
        )
    return is_local


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Follows a few redirections to addresses that ``check_address`` accepts."""

    max_redirections = MAX_REDIRECTIONS
    max_repeats = MAX_REDIRECTIONS

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        fp.close()  # the base class would read the whole body into memory
        if new := headers.get("location") or headers.get("uri"):
            check_address(urljoin(req.full_url, new), req.full_url)
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
            raise RunFolderError(f"{address} was not downloaded within {TOTAL_SECONDS:g} s.")
    if length is not None and length.isdecimal() and len(data) < int(length):
        raise RunFolderError(f"{address} was cut off after {len(data):,} of {int(length):,} bytes: try again.")
    return bytes(data)
