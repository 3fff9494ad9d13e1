"""Reads and writes ``about.json``: command, package versions, git commit and machine of each start of a run.

With these entries a run can be repeated. They contain no user name, no host name, and no paths except those on the
command line. Secrets are removed from the command line.
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
    """Return JSON data about the start of a run: command, UTC time, devices, processor, system, commit and versions.

    Args:
        command: command without its arguments, such as ``"evorl train"``.
        arguments: arguments of the command; values that contain a secret are replaced by ``...``.
        device: number and kind of the devices, such as ``"1 x NVIDIA H100"``.
        source: folder whose git commit is recorded, see ``commit_of``; ``None`` records no commit.
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
    """Append ``start`` to a file, or replace an invalid one; raise ``RunFolderError`` for links or unwritable files."""
    stored = {"starts": [*read_starts(path), dict(start)]}
    with writing_to(path.parent):
        write_atomically(path, json.dumps(stored, indent=1) + "\n")


def read_starts(path: Path) -> list[dict[str, Any]]:
    """Return the recorded starts of a run, oldest first; an empty list if the file is missing or invalid.

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
    """Return the hash of a git clone's checked-out commit, followed by ``+ changes`` if tracked files were changed.

    Return ``None`` if ``folder`` is not the root of a clone, or if git is missing, fails or takes more than 5 s.
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
    """Return pairs ``(name, version)`` of Python, evorl and the installed packages that a run may use."""
    names = ["jax", "jaxlib", "numpy"]
    with contextlib.suppress(metadata.PackageNotFoundError):
        needed = [text for text in metadata.requires(DISTRIBUTION) or () if not _NOT_FOR_RUNS.search(text)]
        names += [match[0] for text in needed if (match := re.match(r"[\w.-]+", text))]
    versions = {"python": platform.python_version(), "evorl": installed_version()}
    for name in sorted(set(names)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return tuple(versions.items())
