"""Finds the run folder of a packed policy, which may be a file, an ``https://`` address or a repository of the Hub."""

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
        which: path of an archive, also relative to ``root``; ``https://...`` of one, optionally with ``#sha256=`` and
            its digest; or ``hf://<owner>/<name>[@<revision>]``.
        root: folder of all runs.

    Raises:
        RunFolderError: the archive cannot be downloaded or read, or its digest differs.
        ImportError: the extra ``hub``, which addresses of the Hub need, is not installed.
    """
    if is_address(which):
        address = str(which)
        return open_archive(download_from_hub(address)) if address.startswith(SCHEME) else _fetched(address)
    for path in (user_path(which), user_path(root) / which):
        if path.is_file() and path.suffix.lower() == SUFFIX:
            return open_archive(path.resolve())
    return None


def _fetched(address: str) -> RunFolder:
    """Download an archive; with a digest, only if it is not unpacked already."""
    address, _, fragment = address.partition("#")
    match = _DIGEST.fullmatch(fragment)
    if fragment and match is None:
        raise RunFolderError(f"{address}#{fragment[:80]} ends in an unknown checksum: expected #sha256=<64 digits>.")
    check_address(address)
    if match and unpacked(match[1]).config.is_file():
        return unpacked(match[1])
    return open_bytes(download(address, MAX_BYTES), address, match and match[1])
