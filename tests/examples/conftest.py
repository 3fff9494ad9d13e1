"""Access to the files of ``examples/robot``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "robot"
NAMES = [path.stem for path in sorted(FOLDER.glob("*.py"))]


@pytest.fixture
def robot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Return a function that imports a file as a user's program does."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)
