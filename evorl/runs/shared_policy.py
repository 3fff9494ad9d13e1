"""Finds the run folder of a packed policy: a file, an ``https://`` address, or a repository of the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from evorl.config.command_lines import is_address, user_path
from evorl.runs.download import check_address, download
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.hub import SCHEME, download_from_hub
from evorl.runs.policy_archive import MAX_BYTES, open_archive, open_bytes, unpacked

SUFFIX = ".zip"
_DIGEST = re.compile(r"sha256=([0-9A-Fa-f]{64})")


def shared_policy(which: Path | str, root: Path | str) -> RunFolder | None:
    """Return the unpacked run folder of a packed policy; ``None`` if ``which`` does not name one.

    Args:
        which: path of a ``.zip`` file, also relative to ``root``; its address ``https://...``, optionally followed by
            ``#sha256=<digest>``; or ``hf://<owner>/<name>[@<revision>]``.
        root: folder of all runs.

    Raises:
        RunFolderError: the archive cannot be downloaded or read, or its digest differs or is not 64 hex digits.
        ImportError: ``which`` is an address of the Hub, and the extra ``hub`` is not installed.
    """
    if is_address(which):
        address = str(which)
        return open_archive(download_from_hub(address)) if address.startswith(SCHEME) else _fetched(address)
    for path in (user_path(which), user_path(root) / which):
        if path.is_file() and path.suffix.lower() == SUFFIX:
            return open_archive(path.resolve())
    return None


def _fetched(address: str) -> RunFolder:
    """Return the run folder of the archive at an address; an unpacked archive with the given digest is reused."""
    address, _, fragment = address.partition("#")
    match = _DIGEST.fullmatch(fragment)
    if fragment and match is None:
        raise RunFolderError(f"{address}#{fragment[:80]} has an unknown checksum: expected #sha256=<64 hex digits>.")
    check_address(address)
    if match and unpacked(match[1]).config.is_file():
        return unpacked(match[1])
    return open_bytes(download(address, MAX_BYTES), address, match and match[1])
