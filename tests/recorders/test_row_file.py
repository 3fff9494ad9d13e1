"""Files of rows: torn lines, replacing, reopening."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.recorders.row_file import RowFile, as_number
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming


def test_lines_are_appended_and_replaced(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "deep" / "rows.txt")
    assert file.lines() == []
    file.append("a")
    file.append("b")
    file.replace(["c", *file.lines()])
    file.append("d")
    file.close()
    assert file.lines() == ["c", "a", "b", "d"]
    assert [path.name for path in file.path.parent.iterdir()] == ["rows.txt"]


def test_a_torn_line_is_cut_off_when_opening(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("whole\nto")
    file = RowFile(path)
    assert file.lines() == ["whole"]
    file.open()
    file.append("next")
    file.close()
    assert path.read_text() == "whole\nnext\n"


def test_an_empty_file_is_fine(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("")
    file = RowFile(tmp_path / "rows.txt")
    file.open()
    file.append("a")
    file.close()
    assert file.lines() == ["a"]


def test_numbers_keep_their_kind() -> None:
    assert [repr(as_number("x", value)) for value in (1, 2.0, True, 2**70)] == ["1", "2.0", "1", str(2**70)]


@pytest.mark.parametrize("name", ["rows.txt", "rows.txt.new"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.write_text("precious\nand torn")
    (tmp_path / name).symlink_to(target)
    file = RowFile(tmp_path / "rows.txt")
    with raises_naming(RunFolderError, name, "symbolic link"):
        file.append("a")
        file.replace(["b"])
    file.close()
    assert target.read_text() == "precious\nand torn"
