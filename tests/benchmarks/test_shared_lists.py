"""Shared entries of YAML lists."""

from __future__ import annotations

from benchmarks.shared_lists import flat


def test_nested_lists_are_merged() -> None:
    assert flat(["a", ["b", ["c"]], "d"]) == ["a", "b", "c", "d"]
