"""Images and videos of run folders, as parts of a page."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from evorl.reports.elements import Element, element
from evorl.reports.recorded_run import RecordedRun

KINDS = {
    ".png": "image/png", ".gif": "image/gif", ".webp": "image/webp", ".jpg": "image/jpeg", ".jpeg": "image/jpeg",
    ".mp4": "video/mp4", ".webm": "video/webm",
}  # fmt: skip
MAX_PER_FOLDER = 4
_SKIPPED_FOLDERS = ("checkpoints", "tensorboard")


class Medium(NamedTuple):
    """An image or a video of a run.

    Attributes:
        run: name of the run.
        path: path of the file.
        name: path relative to the run's folder.
    """

    run: str
    path: Path
    name: str


def media_of(run: RecordedRun) -> list[Medium]:
    """Return images and videos of a run: from each of its folders, the last ``MAX_PER_FOLDER`` in order of file name.

    The learning curve is omitted, because the page draws it. Files behind symbolic links are omitted: pages are
    shared, and a link in an untrusted folder may lead to any of the reader's files.
    """
    by_folder: dict[str, list[Medium]] = {}
    root = run.folder.path
    for path in sorted(root.rglob("*"), key=_natural, reverse=True):
        inside = path.relative_to(root)
        way = [root.joinpath(*inside.parts[: i + 1]) for i in range(len(inside.parts))]
        if path.suffix.lower() not in KINDS or inside.parts[0] in _SKIPPED_FOLDERS or path == run.folder.learning_curve:
            continue
        if path.is_file() and not any(part.is_symlink() for part in way):
            by_folder.setdefault(inside.parent.as_posix(), []).append(Medium(run.name, path, inside.as_posix()))
    return [medium for folder in sorted(by_folder) for medium in by_folder[folder][:MAX_PER_FOLDER]]


def _natural(path: Path) -> list[str | int]:
    """Return a sort key that orders numbers within file names by value."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", str(path)))]


def figures(runs: Sequence[RecordedRun], room: int) -> tuple[list[Element], list[Medium]]:
    """Return images and videos as elements of a page, and the files that exceed the size limit.

    Args:
        runs: runs with the files; the first file of every run has priority over the other files.
        room: size limit of these elements on the page, in bytes.
    """
    shown, left_out = [], []
    of_folders = {run.folder.path: run for run in reversed(runs)}  # in a sweep, the first setting has the images
    by_run = [media_of(run) for run in reversed(of_folders.values())]
    for medium in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*by_run))):
        size = -(-medium.path.stat().st_size // 3) * 4 + 400  # size in base64, with markup
        if size > room:
            left_out.append(medium)
            continue
        room -= size
        shown.append(_figure(medium))
    return shown, left_out


def _figure(medium: Medium) -> Element:
    kind = KINDS[medium.path.suffix.lower()]
    source = f"data:{kind};base64,{base64.b64encode(medium.path.read_bytes()).decode('ascii')}"
    caption = f"{medium.run}: {medium.name}"
    if kind.startswith("video"):
        shown = element("video", controls="", loop="", src=source, title=caption)
    else:
        shown = element("img", src=source, alt=caption)
    return element("figure", shown, element("figcaption", caption))
