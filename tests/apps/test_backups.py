"""Replaced files are kept as backups."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.apps.backups import next_backup, replace_text, replaced, set_aside


def test_a_file_and_a_folder_are_set_aside_under_numbers_that_grow(tmp_path: Path) -> None:
    file, folder = tmp_path / "app.yaml", tmp_path / "algorithm"
    for number in (1, 2):
        file.write_text(str(number))
        folder.mkdir()
        assert set_aside(file) == tmp_path / f"app.yaml.~{number}~"
        assert set_aside(folder) == tmp_path / f"algorithm.~{number}~"
    assert (tmp_path / "app.yaml.~2~").read_text() == "2"
    assert set_aside(file) is None


def test_a_gap_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "app.yaml.~7~").touch()
    (tmp_path / "xapp.yaml.~9~").touch()
    assert next_backup(tmp_path / "app.yaml").name == "app.yaml.~8~"


def test_a_text_is_replaced_and_kept_unless_it_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    assert replace_text(file, "one") is None
    assert replace_text(file, "one") is None
    kept = replace_text(file, "two")
    assert kept == tmp_path / "app.yaml.~1~"
    assert (kept.read_text(), file.read_text()) == ("one", "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app.yaml", "app.yaml.~1~"]


def test_a_folder_that_cannot_be_written_anew_is_what_it_was(tmp_path: Path) -> None:
    folder, backups = tmp_path / "algorithm", []
    folder.mkdir()
    (folder / "mine.py").write_text("mine")
    with pytest.raises(KeyError), replaced(folder, backups):
        folder.mkdir()
        (folder / "half.py").touch()
        raise KeyError
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.py")] == ["algorithm/mine.py"]
    assert backups == []
    with replaced(folder, backups):
        folder.mkdir()
    assert backups == [tmp_path / "algorithm.~1~"]
    assert (backups[0] / "mine.py").read_text() == "mine"


def test_a_new_folder_that_cannot_be_completed_is_removed(tmp_path: Path) -> None:
    folder, backups = tmp_path / "algorithm", []
    with pytest.raises(KeyError), replaced(folder, backups):
        folder.mkdir()
        (folder / "half.py").touch()
        raise KeyError
    with pytest.raises(KeyError), replaced(folder, backups):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    assert backups == []
