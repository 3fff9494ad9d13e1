"""Reads and writes ``about.json``: command, versions, commit and machine of each start of a run, to repeat it.

The file contains no user name, no host name and no path except those on the command line, from which secrets are
removed.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import platform
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from evorl.distribution import DISTRIBUTION, installed_version
from evorl.runs.files import refuse_link, write_atomically, writing_to
from evorl.runs.privacy import shareable_argument

_NOT_FOR_RUNS = re.compile(r"extra\s*==\s*['\"](test|check|docs|all)['\"]")
_GIT_SECONDS = 5.0


def describe_start(command: str, arguments: Sequence[str], device: str, source: Path | None = None) -> dict[str, Any]:
    """Describe the start of a training.

    Args:
        command: the command that starts a training, ``"evorl train"``.
        arguments: its arguments, as given.
        device: ``"cpu"`` or the name of the GPU, with the number of devices.
        source: folder of the source tree, if the package runs from one.
    """
    return {
        "command": " ".join([command, *(shlex.quote(shareable_argument(argument)) for argument in arguments)]),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device,
        "processor": processor_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "commit": commit_of(source) if source else None,
        "versions": dict(installed_versions()),
    }


def add_start(path: Path, start: Mapping[str, Any]) -> None:
    """Append a start of a run to the file.

    Raises:
        RunFolderError: the file cannot be written.
    """
    stored = {"starts": [*read_starts(path), dict(start)]}
    with writing_to(path.parent):
        write_atomically(path, json.dumps(stored, indent=1) + "\n")


def read_starts(path: Path) -> list[dict[str, Any]]:
    """Return the starts of a run, oldest first; an empty list if the file is missing or invalid.

    Raises:
        RunFolderError: the path is a symbolic link.
    """
    refuse_link(path)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return [start for start in stored["starts"] if isinstance(start, dict)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def processor_name() -> str:
    """Return the processor's model name, or its architecture; ``unknown`` if the system reports neither."""
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return " ".join(match[1].split())
    return platform.processor() or "unknown"


@functools.cache
def commit_of(folder: Path) -> str | None:
    """Return the checked-out commit of a clone, followed by ``+ changes`` if tracked files differ.

    ``None`` if the folder is not the root of a clone, or git is not installed.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != folder.resolve():
            return None  # the package is installed inside another project's clone
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + (" + changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def installed_versions() -> tuple[tuple[str, str], ...]:
    """Return the installed versions of Python, this package and the packages that a training may use."""
    names = ["jax", "jaxlib", "numpy"]
    with contextlib.suppress(metadata.PackageNotFoundError):
        needed = [text for text in metadata.requires(DISTRIBUTION) or () if not _NOT_FOR_RUNS.search(text)]
        names += [match[0] for text in needed if (match := re.match(r"[\w.-]+", text))]
    versions = {"python": platform.python_version(), "evorl": installed_version()}
    for name in sorted(set(names)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return tuple(versions.items())
