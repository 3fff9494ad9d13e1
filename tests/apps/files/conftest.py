"""A server for simulators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.rlx_server import BanditServer


@pytest.fixture
def server() -> Iterator[BanditServer]:
    """Start a server that answers like a bandit player unless ``action`` is set."""
    with BanditServer() as server:
        yield server
