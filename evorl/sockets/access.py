"""Addresses, access tokens and TLS of all servers."""

from __future__ import annotations

import hmac
import ssl
from pathlib import Path
from typing import Any

from evorl.config.command_lines import is_this_machine, user_path


def host_and_port(address: Any, name: str) -> tuple[str, int]:
    """Return host and port of an address such as ``[::1]:7001``; the default host is 127.0.0.1. ``name`` is for errors.

    Raises:
        ValueError: the address is malformed.
    """
    host, colon, port = str(address).rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or len(port) > 5 or int(port) > 65_535:
        raise ValueError(f"{name} must be an address and a port up to 65535, as in 127.0.0.1:7001; got {address!r}.")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def require_token_beyond_this_machine(host: str, token: str | None, setting: str, advice: str) -> None:
    """Raise ``ValueError``, with ``setting`` and ``advice``, if other machines could connect without a token."""
    if not token and not is_this_machine(host):
        raise ValueError(
            f"{setting} can be reached from other machines and needs a token: {advice}, or listen on 127.0.0.1."
        )


def is_same_secret(shown: Any, secret: str | None) -> bool:
    """Return True if a client's token equals the server's, in constant time; False if either is not a string."""
    if not isinstance(shown, str) or secret is None:
        return False
    return hmac.compare_digest(shown.encode("utf-8", "surrogatepass"), secret.encode())


def tls_context(cert: Path | str | None, key: Path | str | None, names: str = "cert, key") -> ssl.SSLContext | None:
    """Return the TLS context of a certificate and its key; ``None`` if both are ``None``.

    Args:
        cert: PEM file of the certificate.
        key: PEM file of the key, without a password.
        names: names of the two settings, separated by ``, ``, for error messages.

    Raises:
        ValueError: one of the two is missing, or a file is invalid.
    """
    if cert is None and key is None:
        return None
    of_cert, of_key = names.split(", ")
    if cert is None or key is None:
        unset = of_cert if cert is None else of_key
        raise ValueError(f"{unset} is missing: TLS needs both files. Set {of_cert}=<file> and {of_key}=<file>.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without this, OpenSSL would prompt for the password of an encrypted key.
        context.load_cert_chain(user_path(cert), user_path(key), password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"{of_cert}={cert} and {of_key}={key} are not a PEM certificate and its key without a password: {error}."
        ) from error
    return context
