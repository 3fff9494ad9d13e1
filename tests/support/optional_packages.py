"""Optional packages: a test that needs one is skipped without it, and fails in CI, where all are installed."""

from __future__ import annotations

import importlib.util
import os

import pytest


def need(package: str, extra: str) -> None:
    """Skip the test, or the module being imported, unless ``package`` is installed; in CI fail."""
    if importlib.util.find_spec(package) is not None:
        return
    words = f'needs the package {package}, of the extra {extra}: pip install -c constraints.txt -e ".[{extra}]"'
    if os.environ.get("CI"):
        pytest.fail(words, pytrace=False)
    pytest.skip(words, allow_module_level=True)
