"""Writes files and folders, never through a symbolic link, and explains why writing failed.

A run folder may come from an untrusted source. A symbolic link inside the folder, at a path that a run writes, could
make the run overwrite any file of the user, so such links are rejected. A link that leads to the run folder is
followed, because the user created it.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

MANIFEST = "manifest.json"  # of a checkpoint, see ``evorl.runs.manifest``
_REASONS: dict[int | None, tuple[str, str]] = {
    errno.ENOSPC: ("no space is left on its disk", "Free some space"),
    errno.EDQUOT: ("the disk quota is used up", "Free some space"),
    errno.EFBIG: ("a file exceeds the size limit of this system (ulimit -f)", "Raise the limit"),
    errno.EROFS: ("its disk is read-only", "Choose a writable folder"),
    errno.EACCES: ("permission is denied", "Choose a folder that you may write"),
    errno.EPERM: ("permission is denied", "Choose a folder that you may write"),
    errno.EIO: ("its disk reports an input/output error", "Choose a folder on another disk"),
    errno.ENOTDIR: ("part of its path is a file", "Choose another folder"),
    errno.EEXIST: ("a file with that name exists", "Choose another folder"),
}
# Some libraries report these errors only in the text of custom exceptions.
_REASONS_IN_TEXT = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "Permission denied": errno.EACCES,
    "Input/output error": errno.EIO,
}
PRIVATE = 0o700
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class RunFolderError(OSError):
    """Raised for a run folder or a policy file that is missing, invalid, not trusted or not writable."""


@contextlib.contextmanager
def writing_to(folder: Path | str) -> Iterator[None]:
    """Context manager that converts errors of writing to ``folder`` into ``RunFolderError``, with reason and remedy.

    Raises:
        RunFolderError: the context raised an ``OSError``, or another error about a disk or a denied permission.
    """
    try:
        yield
    except RunFolderError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        code = getattr(error, "errno", None)
        if code not in _REASONS:
            code = next((number for text, number in _REASONS_IN_TEXT.items() if text in str(error)), code)
        if code not in _REASONS and not isinstance(error, OSError):
            raise
        raise _write_error(folder, *_REASONS.get(code, (str(error), "Choose another folder")), code) from error


def _write_error(folder: Path | str, reason: str, advice: str, code: int | None) -> RunFolderError:
    saved = any(glob.glob(f"{place}[0-9]*/{MANIFEST}", root_dir=folder) for place in ("", "checkpoints/"))
    kept = " Checkpoints are kept: the run can resume." if saved else ""
    error = RunFolderError(f"Cannot write to {folder}: {reason}. {advice}, then try again.{kept}")
    error.errno = code
    return error


def sibling(path: Path, suffix: str, *replaced: str) -> Path:
    """Return ``path`` with ``suffix``, which replaces only a suffix in ``replaced``: names may have dots (lr_0.5)."""
    return path.with_name((path.stem if path.suffix in replaced else path.name) + suffix)


def refuse_link(path: Path) -> None:
    """Raise ``RunFolderError`` if ``path`` is a symbolic link."""
    if path.is_symlink():
        raise RunFolderError(
            f"{path} is a symbolic link, which evorl does not follow, because it may lead out of this folder: replace "
            "the link by its target, or remove it."
        )


def open_to_write(path: Path | str, mode: str = "w") -> IO[Any]:
    """Open a file with mode w, wb, a or ab, but no symbolic link; text is UTF-8 without converted line ends.

    Raises:
        RunFolderError: ``path`` is a symbolic link.
        OSError: the file cannot be written.
    """
    path = Path(path)

    def opener(name: str, flags: int) -> int:
        refuse_link(path)
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)

    if "b" in mode:
        return open(path, mode, opener=opener)
    return open(path, mode, encoding="utf-8", newline="\n", opener=opener)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write bytes or UTF-8 text atomically: if the process is killed, the file has its old or its new content.

    Raises:
        RunFolderError: ``path`` is a symbolic link.
        OSError: the file cannot be written.
    """
    with replacing(path, "wb" if isinstance(content, bytes) else "w") as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Context manager that yields a file which replaces ``path`` at the end; pipes and devices are written directly."""
    refuse_link(path)
    if path.exists() and not path.is_file():
        with open_to_write(path, mode) as file:
            yield file
        return
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # another process may write the same file
    try:
        with open_to_write(new, mode) as file:  # closing writes the rest, which may fail
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield file
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder with the permissions ``mode``, and its parents; an existing folder is unchanged.

    Raises:
        RunFolderError: ``path`` is a symbolic link.
        OSError: the folder cannot be created.
    """
    refuse_link(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=mode, exist_ok=True)


def user_cache(name: str) -> Path:
    """Return the folder ``evorl/<name>`` in the user's cache folder; the returned folder may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evorl" / name


def make_private_folder(path: Path | str) -> None:
    """Create a folder that only the current user can enter, for files that others must not replace.

    If the folder exists and belongs to the user, its permissions are set to 0700.

    Raises:
        RunFolderError: the folder cannot be created; or it belongs to another user, unless that is root and only root
            can write to it.
    """
    path = Path(path)
    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=PRIVATE, exist_ok=True)
        if not hasattr(os, "geteuid"):
            return
        about = path.stat()
        if about.st_uid == os.geteuid():
            if stat.S_IMODE(about.st_mode) != PRIVATE:
                path.chmod(PRIVATE)
        elif about.st_uid != 0 or about.st_mode & _WRITABLE_BY_OTHERS:
            raise RunFolderError(
                f"{path} belongs to another user, who could replace files that evorl trusts: choose a folder that you "
                "own."
            )
