"""The version belongs to this distribution, even if another one has the same import name."""

from __future__ import annotations

from importlib import metadata

import pytest

import evorl
from evorl import distribution


def test_the_version_is_that_of_the_distribution() -> None:
    assert distribution.installed_version() == metadata.version(distribution.DISTRIBUTION) == evorl.__version__


def test_a_source_tree_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "DISTRIBUTION", "evorl-not-installed")
    assert distribution.installed_version() == "0+source"
