"""A self-signed certificate for localhost with its key, for TLS tests only."""

from __future__ import annotations

from pathlib import Path

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUGu55IiOt/lbupY8+FLrHFdCSGhswCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMzIyMzkwNFoYDzIxMjYxMDMw
MjIzOTA0WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQMkW3MHuyZukCcOc35XrQG3+4XzhkjbsZ6FVas+HDVBSiv5UR6xImM
cx1YM4DFpyV8SHtHYcyQowMIk3Z77qIno28wbTAdBgNVHQ4EFgQUeonj08rFR6EE
xE+jeZT+SptbUS8wHwYDVR0jBBgwFoAUeonj08rFR6EExE+jeZT+SptbUS8wDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIhAIpVmqK3qzlc3OGTEXKd4rNhEMXIJuCwUM4exdSoUm8jAiBA
ziytv8U5owxhGHG2to/eMUjoApwg6Mi0uh90fLYKIg==
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgMRuxxfebxP9bnfNq
FOT0fXLS8I3QiwZsRrBBKf9IN1OhRANCAAQMkW3MHuyZukCcOc35XrQG3+4Xzhkj
bsZ6FVas+HDVBSiv5UR6xImMcx1YM4DFpyV8SHtHYcyQowMIk3Z77qIn
-----END PRIVATE KEY-----
"""


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write certificate and key for 127.0.0.1 and localhost; return their paths."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_text(CERTIFICATE)
    key.write_text(KEY)
    return cert, key
