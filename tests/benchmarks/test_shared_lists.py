"""Shared entries of YAML lists."""

from __future__ import annotations

from benchmarks.shared_lists import flat


def test_shared_entries_stand_among_the_others() -> None:
    assert flat(["a", ["b", ["c"]], "d"]) == ["a", "b", "c", "d"]
