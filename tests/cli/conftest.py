"""A finished run of the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evorl.runs.folder import RunFolder
from tests.support.command_line import SMALL


@pytest.fixture
def trained(train_once: Callable[..., RunFolder]) -> RunFolder:
    """Train a finished run below ``<root>/ppo-cartpole/``."""
    return train_once(*SMALL)
