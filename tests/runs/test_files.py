"""Safe writing: never through a link, private for compiled programs, with error messages."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from evorl.runs.files import (
    RunFolderError,
    make_folder,
    make_private_folder,
    open_to_write,
    refuse_link,
    replacing,
    sibling,
    write_atomically,
    writing_to,
)
from evorl.runs.manifest import MANIFEST
from tests.support.errors import raises_naming


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ("no space", "its disk", "free some space")),
        (OSError(errno.EFBIG, "File too large"), ("ulimit -f", "raise the limit")),
        (OSError(errno.EROFS, "Read-only file system"), ("its disk", "read-only", "writable folder")),
        (PermissionError(errno.EACCES, "Permission denied"), ("permission",)),
        (ValueError("RESOURCE_EXHAUSTED: write failed: No space left on device"), ("no space", "its disk")),
        (OSError("something else"), ("something else",)),
    ],
)
def test_failures_to_write_become_one_sentence(error: Exception, parts: tuple[str, ...]) -> None:
    with raises_naming(RunFolderError, "write to here", *parts), writing_to("here"):
        raise error


@pytest.mark.parametrize("written", ["", "checkpoints", "export"])
def test_kept_checkpoints_are_mentioned_only_where_there_are_some(tmp_path: Path, written: str) -> None:
    """An export to a full disk, or a run that had not saved yet, has nothing to resume."""
    for is_saved in (False, True):
        if is_saved:
            (tmp_path / "checkpoints" / "8").mkdir(parents=True)
            (tmp_path / "checkpoints" / "8" / MANIFEST).write_text("{}")
        with pytest.raises(RunFolderError) as raised, writing_to(tmp_path / written):
            raise OSError(errno.ENOSPC, "No space left on device")
        assert ("Checkpoints are kept" in str(raised.value)) == (is_saved and written != "export")
        assert raised.value.errno == errno.ENOSPC


NAMES = st.text(st.sampled_from("a0.-_"), min_size=1).filter(lambda name: name.strip("."))


@hypothesis.given(NAMES, NAMES)
def test_files_next_to_different_files_are_different(first: str, second: str) -> None:
    """Names may have dots: ``Path.with_suffix`` would give lr_0.1 and lr_0.2 the same file."""
    files = {sibling(Path(name), ".csv", ".html") for name in (first, second)}
    assert len(files) == len({first, second})
    assert sibling(Path(f"{first}.html"), ".csv", ".html") == Path(f"{first}.csv")
    assert sibling(Path(first), ".csv", ".html") == Path(f"{first}.csv")


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(ValueError, match=r"^a bug$"), writing_to("here"):
        raise ValueError("a bug")


@pytest.mark.parametrize("mode", ["w", "a", "wb", "ab"])
@pytest.mark.parametrize("exists", [False, True])
def test_a_link_is_not_written_through(tmp_path: Path, mode: str, exists: bool) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    if exists:
        target.write_text("precious")
    link.symlink_to(target)
    with raises_naming(RunFolderError, "link", "symbolic link"):
        open_to_write(link, mode)
    assert (target.read_text() == "precious") if exists else not target.exists()


def test_a_link_that_appears_at_the_last_moment_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evorl.runs.files.refuse_link", lambda path: None)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with raises_naming(OSError, tmp_path / "link"):
        open_to_write(tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_text_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "1 ± 2\n")
    with open_to_write(tmp_path / "file", "a") as file:
        file.write("3\n")
    assert (tmp_path / "file").read_bytes() == b"1 \xc2\xb1 2\n3\n"


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for check in (make_folder, refuse_link):
        with raises_naming(RunFolderError, tmp_path / "link", "symbolic link"):
            check(tmp_path / "link")
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_private_folder_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "compiled"
    for mode in (None, 0o777):
        if mode:
            folder.chmod(mode)
        make_private_folder(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "cache" / "file").write_text("")
    with raises_naming(RunFolderError, tmp_path / "cache" / "file", "file with that name"):
        make_private_folder(tmp_path / "cache" / "file")
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    if folder.stat().st_uid == 0:
        folder.chmod(0o777)
    with raises_naming(RunFolderError, folder, "another user"):
        make_private_folder(folder)


def test_writers_of_the_same_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two reports of the same runs mixed their content, or the second one failed to replace the file."""
    path = tmp_path / "report.html"
    with replacing(path, "w") as first:
        with replacing(path, "w") as second:
            first.write("first")
            second.write("second, which is longer")
        assert path.read_text() == "second, which is longer"
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"report.html": "first"}


@pytest.mark.parametrize("failure", ["error", "removed", "end", "permissions"])
def test_a_failed_replacement_keeps_the_file_and_the_error(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the temporary file is gone, and if the rest cannot be written when the file is closed."""
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"old")
    if failure == "permissions":
        monkeypatch.setattr(os, "fchmod", lambda *_: os.stat(tmp_path / "nowhere"))
    with pytest.raises(KeyError if failure in ("error", "removed") else OSError), replacing(path) as file:
        file.write(b"new")
        if failure == "end":
            os.close(file.fileno())
        else:
            if failure == "removed":
                next(tmp_path.glob(".metrics.csv.*")).unlink()
            raise KeyError("of the caller")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"metrics.csv": b"old"}


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    """A pipe or device, such as /dev/null, must not be replaced by a file."""
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "pipe", "1 ± 2")
    assert os.read(reading, 100).decode() == "1 ± 2"
    os.close(reading)
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "report.html"
    file.write_text("old")
    file.chmod(mode)
    write_atomically(file, "new")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", mode)


# Files that may write into a file with its final name: it is new, or its lines are appended.
IN_PLACE = {
    "evorl/runs/files.py",
    *("evorl/apps/app_files.py", "evorl/cli/app_commands.py"),  # a new app, or files that were renamed to backups
    *("evorl/export/artifacts.py", "evorl/runs/policy_archive.py"),  # in a temporary folder
    *("evorl/cli/client_check.py", "evorl/serving/client_copy.py"),  # a file or a pipe that the user named
    *("evorl/runs/storage.py", "evorl/runs/manifest.py"),  # of an unfinished checkpoint
}


def test_whole_files_are_replaced_atomically() -> None:
    """A full disk or a killed process must not leave half of a page, image or table in place of the old one."""
    root = Path(__file__).resolve().parents[2]
    calls = {
        path.relative_to(root).as_posix(): re.findall(
            r"open_to_write\((?:[^()]|\([^()]*\))*\)|\.write_(?:text|bytes)\(", path.read_text("utf-8")
        )
        for path in (root / "evorl").rglob("*.py")
    }
    in_place = {path for path, found in calls.items() for call in found if not re.search(r', "ab?"\)$', call)}
    assert in_place == IN_PLACE
