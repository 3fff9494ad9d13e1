"""A server for simulators to play with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.rlx_server import BanditServer


@pytest.fixture
def server() -> Iterator[BanditServer]:
    """Answers as a bandit's player does, unless ``action`` is set."""
    with BanditServer() as server:
        yield server
