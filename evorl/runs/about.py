"""``about.json``: how a run was started, each time: command, versions, commit, machine. By that it can be repeated.

It names no user, no host and no folder but those of the command line, whose secrets are left out.
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

_SECRET = re.compile(r"token|password|passwd|secret|api_?key|credential", re.IGNORECASE)
_NOT_FOR_RUNS = re.compile(r"extra\s*==\s*['\"](test|check|docs|all)['\"]")
_GIT_SECONDS = 5.0


def describe_start(command: str, arguments: Sequence[str], device: str, source: Path | None = None) -> dict[str, Any]:
    """What is known of the start of a training.

    Args:
        command: what starts a training here, ``"evorl train"``.
        arguments: the settings behind it, as they were given.
        device: what computes, ``"cpu"`` or the name of a GPU, with how many there are.
        source: a folder of the source tree, if the package runs from one.
    """
    return {
        "command": " ".join([command, *(shlex.quote(_without_secret(argument)) for argument in arguments)]),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device,
        "processor": processor_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "commit": commit_of(source) if source else None,
        "versions": dict(installed_versions()),
    }


def add_start(path: Path, start: Mapping[str, Any]) -> None:
    """Write down one more start of a run, behind those before.

    Raises:
        RunFolderError: the file cannot be written.
    """
    told = {"starts": [*read_starts(path), dict(start)]}
    with writing_to(path.parent):
        write_atomically(path, json.dumps(told, indent=1) + "\n")


def read_starts(path: Path) -> list[dict[str, Any]]:
    """The starts of a run, the first one first; none where nobody wrote them down, or not so.

    Raises:
        RunFolderError: there is a symbolic link in its place.
    """
    refuse_link(path)
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return [start for start in told["starts"] if isinstance(start, dict)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def processor_name() -> str:
    """The processor as its maker calls it, where the system tells."""
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return " ".join(found[1].split())
    return platform.processor() or "unknown"


@functools.cache
def commit_of(folder: Path) -> str | None:
    """The commit that a folder of a clone stands at, ``+ changes`` behind it if tracked files differ from it.

    ``None`` where the folder is of no clone, or git is not installed.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != folder.resolve():
            return None  # a package that lies in somebody's clone is none of it
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + (" + changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def installed_versions() -> tuple[tuple[str, str], ...]:
    """Versions of Python, of this package and of what it may use in a training, as far as they are installed."""
    names = ["jax", "jaxlib", "numpy"]
    with contextlib.suppress(metadata.PackageNotFoundError):
        needed = [text for text in metadata.requires(DISTRIBUTION) or () if not _NOT_FOR_RUNS.search(text)]
        names += [found[0] for text in needed if (found := re.match(r"[\w.-]+", text))]
    versions = {"python": platform.python_version(), "evorl": installed_version()}
    for name in sorted(set(names)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return tuple(versions.items())


def _without_secret(argument: str) -> str:
    return f"{argument.partition('=')[0]}=..." if _SECRET.search(argument) else argument
