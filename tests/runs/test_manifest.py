"""Manifests detect and name every kind of damage to a checkpoint's files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from evorl.runs.manifest import MANIFEST, Damage, read_manifest, read_verified, verify, write_manifest
from tests.support.errors import raises_naming


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Create an undamaged folder of iteration 7 with three files."""
    folder = tmp_path / "7"
    (folder / "state").mkdir(parents=True)
    for name in ("a.json", "state/b", "state/c"):
        (folder / name).write_bytes(name.encode() * 50_000)
    write_manifest(folder, 7)
    return folder


def test_a_whole_one_is_believed(checkpoint: Path) -> None:
    verify(checkpoint)
    assert read_manifest(checkpoint).iterations == 7
    assert sorted(read_manifest(checkpoint).files) == ["a.json", "state/b", "state/c"]
    assert read_verified(checkpoint, "a.json") == b"a.json" * 50_000


def flip(folder: Path) -> None:
    data = bytearray((folder / "state" / "b").read_bytes())
    data[123_456] ^= 1
    (folder / "state" / "b").write_bytes(data)


def link(folder: Path) -> None:
    (folder / "state" / "c").rename(folder.parent / "c")
    (folder / "state" / "c").symlink_to(folder.parent / "c")


def rewrite(folder: Path, **changes) -> None:
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGES: list[tuple[Callable[[Path], object], tuple[str, ...]]] = [
    (flip, ("state/b", "digest")),
    (link, ("state/c", "symbolic link")),
    (lambda folder: (folder / "a.json").unlink(), ("a.json", "missing")),
    (lambda folder: (folder / "more").write_text(""), ("more", "added")),
    (lambda folder: (folder / MANIFEST).unlink(), ("no manifest.json",)),
    (lambda folder: (folder / MANIFEST).write_text("{"), ("manifest.json", "cannot be read")),
    (lambda folder: (folder / MANIFEST).write_bytes(b"\xff"), ("manifest.json", "cannot be read")),
    (lambda folder: rewrite(folder, iterations=8), ("manifest.json", "iteration 8")),
    (lambda folder: rewrite(folder, iterations=1e999), ("manifest.json", "cannot be read")),
    (lambda folder: rewrite(folder, files=["a.json"]), ("manifest.json", "cannot be read")),
]


@pytest.mark.parametrize(("damage", "parts"), DAMAGES, ids=[", ".join(parts) for _, parts in DAMAGES])
def test_damage_is_named(checkpoint: Path, damage: Callable[[Path], object], parts: tuple[str, ...]) -> None:
    damage(checkpoint)
    with raises_naming(Damage, *parts):
        verify(checkpoint)


def test_a_copy_under_another_name_is_not_believed(checkpoint: Path) -> None:
    copy = checkpoint.rename(checkpoint.with_name("99999999"))
    with raises_naming(Damage, "manifest.json", "iteration 7"):
        verify(copy)


def test_one_file_is_verified_by_itself(checkpoint: Path) -> None:
    flip(checkpoint)
    assert read_verified(checkpoint, "a.json")
    with raises_naming(Damage, "state/b", "digest"):
        read_verified(checkpoint, "state/b")
    with raises_naming(Damage, "nothing", "cannot be read"):
        read_verified(checkpoint, "nothing")
