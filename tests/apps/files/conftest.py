"""A server for simulators to play with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_agent_server import FakeAgentServer


@pytest.fixture
def server() -> Iterator[FakeAgentServer]:
    """Answers as a bandit's player does, unless ``action`` is set."""
    fake = FakeAgentServer()
    yield fake
    fake.close()
