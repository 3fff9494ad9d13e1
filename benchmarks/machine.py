"""Metadata of every result: machine, time and versions.

Peers import this module in separate virtual environments, so it requires only the standard library.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

from evorl.distribution import DISTRIBUTION

CHECKOUT = Path(__file__).resolve().parent.parent


def about() -> dict[str, str]:
    """Return machine, date and commit of a result."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"machine": describe_machine(), "date": date, "commit": describe_commit()}


def describe_commit(checkout: Path = CHECKOUT) -> str:
    """Return the commit of a Git checkout, followed by ``+`` if its code or configs differ; ``unknown`` without Git.

    ``configs/experiment/_results.json`` may differ: it is written after each recording.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", checkout, *arguments], capture_output=True, check=True, text=True).stdout

    try:
        changed = git("status", "--porcelain", "--", "evorl", "configs", ":!configs/experiment/_results.json")
        return git("rev-parse", "HEAD").strip() + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe_machine() -> str:
    """Describe cores available to this process, processor, memory and system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = [f"{cores} core{'s' * (cores != 1)}", _processor()]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        parts.append(f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB")
    return ", ".join([*parts, f"{platform.system()} {platform.machine()}"])


def versions(*packages: str) -> dict[str, str]:
    """Return installed versions by package, and that of Python."""
    installed = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            name = DISTRIBUTION if package == "evorl" else package
            installed[package] = importlib.metadata.version(name)
    return installed


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return " ".join(line.split(":", 1)[1].split())
    return platform.processor() or "unknown processor"
