"""Figures written as PNG."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO, Any, cast

import pytest

from evorl.recorders.pictures import write_png
from evorl.runs.files import RunFolderError


class FullDisk:
    """A figure that fills the disk while it is written."""

    def savefig(self, file: IO[bytes], format: str) -> None:
        file.write(b"half of the image")
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_keeps_the_earlier_image(tmp_path: Path) -> None:
    (tmp_path / "curve.png").write_bytes(b"earlier")
    with pytest.raises(RunFolderError, match="no space"):
        write_png(cast(Any, FullDisk()), tmp_path / "curve.png")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"curve.png": b"earlier"}
