"""Packed policies: a trained policy in one ZIP file, which may come from an untrusted source.

The archive contains files named in ``FILES`` and a ``manifest.json`` with their digests. It is unpacked into a run
folder in the user's cache, named after the digest of the archive. Reading rejects links, absolute paths, ``..``, names
that are not in ``FILES``, encryption, and archives whose number of files, size or compression ratio exceeds a limit.
Reading executes nothing. The config is checked like that of any stored run (``evorl.config.gate``).
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from evorl.runs.files import RunFolderError, make_private_folder, user_cache, write_atomically, writing_to
from evorl.runs.folder import RunFolder
from evorl.runs.storage import read_about, read_structure, write_arrays
from evorl.runs.structure import SMALL, CheckpointError

FORMAT, VERSION = "evorl-policy", 1
MANIFEST = "manifest.json"
CARD, REPORT, PAGE = "README.md", "report.html", "policy.html"
CONFIG, ABOUT, METRICS = "config.yaml", "about.json", "metrics.csv"
ARRAYS, STRUCTURE, PROGRESS = "checkpoint/arrays.bin", "checkpoint/structure.json", "checkpoint/progress.json"
_REQUIRED = frozenset((CONFIG, ARRAYS, STRUCTURE, PROGRESS))
FILES = frozenset((CARD, REPORT, PAGE, ABOUT, METRICS)) | _REQUIRED
MAX_BYTES = 2**29  # size limit of an archive
MAX_CONTENT = 2**30  # size limit of all files together
MAX_JSON = 2**24  # size limit of a JSON file, which is several times as large in memory
MAX_RATIO = 200  # limit of the compression ratio of files above _SMALL
_SMALL = 2**20
_MAX_DIRECTORY = 2**14  # size limit of the table of contents, in bytes
_MAX_STEP = 2**53
_END = b"PK\5\6"  # signature of the last 22 bytes of an archive without a comment
_END_BYTES = 22
_LOCATOR = b"PK\6\7"  # signature of the ZIP64 record before these bytes, for archives of more than 4 GB
_LOCATOR_BYTES = 20
_DAMAGE = (OSError, EOFError, KeyError, ValueError, TypeError, AttributeError, OverflowError, RuntimeError)
_DAMAGE += (MemoryError, RecursionError, zipfile.BadZipFile, zlib.error)


def write_archive(path: Path, files: Mapping[str, bytes], about: Mapping[str, Any]) -> str:
    """Write an archive that ``read_archive`` accepts, and return its SHA-256; equal contents give equal bytes.

    Args:
        path: path of the archive; an existing file is replaced atomically.
        files: contents by file name; the names are in ``FILES``.
        about: additional entries of the manifest, JSON data.

    Raises:
        RunFolderError: ``path`` cannot be written or is a link, a file is missing or unknown, or a limit is exceeded.
    """
    entries = {name: {"sha256": _sha256(content), "bytes": len(content)} for name, content in sorted(files.items())}
    manifest = {"format": FORMAT, "version": VERSION, **about, "files": entries}
    contents = {MANIFEST: (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode(), **files}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name)  # dated 1980
            entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            # Compression would hardly shrink network parameters.
            entry.compress_type = zipfile.ZIP_STORED if name == ARRAYS else zipfile.ZIP_DEFLATED
            archive.writestr(entry, contents[name])
    try:
        read_archive(stream, path)
    except RunFolderError as error:
        raise RunFolderError(f"{path} cannot be packed: {str(error.__cause__).rstrip('.')}.") from error
    with writing_to(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, stream.getvalue())
    return _sha256(stream.getvalue())


def read_archive(file: IO[bytes], source: Path | str) -> dict[str, bytes]:
    """Return an archive's files by name, checked against the manifest, which is omitted; ``source`` is for messages.

    Raises:
        RunFolderError: the archive is corrupted, exceeds a limit, or is not a packed policy.
    """
    try:
        _check_directory(file)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _check_entries(entries)
            contents = {entry.filename: _read(archive, entry) for entry in entries}
        _check_manifest(contents)
    except _DAMAGE as error:
        reason = str(error).rstrip(".")[:200] or type(error).__name__
        raise RunFolderError(
            f"{source} is not a valid packed policy: {reason}. Download it again, or pack the run again (evorl pack)."
        ) from error
    del contents[MANIFEST]
    return contents


def open_archive(path: Path) -> RunFolder:
    """Unpack the archive at a path into the user's cache, see ``open_bytes``, and return its run folder.

    Raises:
        RunFolderError: the file cannot be read or is not a packed policy, or the cache cannot be written.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}.") from error
    return open_bytes(data, path)


def open_bytes(data: bytes, source: Path | str, sha256: str | None = None) -> RunFolder:
    """Unpack an archive into the user's cache, unless it is there already, and return its run folder.

    Args:
        data: content of the archive.
        source: path or address of the archive, for messages.
        sha256: expected digest of the archive, hexadecimal; ``None`` accepts any.

    Raises:
        RunFolderError: ``read_archive`` rejects the archive, the digest differs, or the cache cannot be written.
    """
    if len(data) > MAX_BYTES:
        raise RunFolderError(f"{source} has more than {MAX_BYTES:,} bytes, so it is not a packed policy.")
    digest = _sha256(data)
    if sha256 is not None and digest != sha256.lower():
        raise RunFolderError(
            f"{source} has the SHA-256 {digest}, but {sha256} was expected: it was changed or is another file. "
            "Ask its author for the correct digest."
        )
    folder = unpacked(digest)
    if not folder.config.is_file():
        _unpack(read_archive(io.BytesIO(data), source), folder.path, source)
    return folder


def unpacked(sha256: str) -> RunFolder:
    """Return the run folder of the unpacked archive with this SHA-256; the folder may not exist yet.

    Raises:
        RunFolderError: the cache belongs to another user and may contain replaced files.
    """
    cache = user_cache("policies").resolve()
    if cache.exists():
        make_private_folder(cache)
    return RunFolder(cache / sha256.lower())


def _unpack(contents: Mapping[str, bytes], folder: Path, source: Path | str) -> None:
    """Write a run folder under a temporary name, and rename it when it is complete."""
    with writing_to(folder.parent):
        make_private_folder(folder.parent)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
        try:
            for name in contents.keys() - {ARRAYS, STRUCTURE, PROGRESS}:
                (unfinished / name).write_bytes(contents[name])
            _write_checkpoint(RunFolder(unfinished).checkpoints, contents, source)
            if not folder.is_dir():  # another process may have been faster
                unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _write_checkpoint(folder: Path, contents: Mapping[str, bytes], source: Path | str) -> None:
    """Write the checkpoint of an archive into ``folder``; raise ``RunFolderError`` if the checkpoint is corrupted."""
    data = np.frombuffer(contents[ARRAYS], np.uint8)
    try:
        leaves = json.loads(contents[STRUCTURE])["leaves"]
        about = json.loads(contents[PROGRESS])
        step = about["iterations"]
        if not (type(step) is int and 0 <= step < _MAX_STEP):
            raise ValueError(f"its iteration is {step!r:.80}")
        if not all(leaf["offset"] is None or 0 <= leaf["offset"] <= data.size for leaf in leaves):
            raise ValueError("an array is outside of the file")
        if not data.size:
            raise ValueError("it has no arrays")
        write_arrays(folder / str(step), {SMALL: data}, leaves, about)
        read_structure(folder / str(step))
        read_about(folder / str(step))
    except (KeyError, TypeError, ValueError, RecursionError, CheckpointError) as error:
        raise RunFolderError(f"{source} has a corrupted checkpoint ({str(error)[:200]}): download it again.") from error


def _check_directory(file: IO[bytes]) -> None:
    """Raise ``ValueError`` if the table of contents exceeds ``_MAX_DIRECTORY``, or is not at the end of the file.

    ``zipfile`` reads the whole table before its entries can be counted.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _END_BYTES - _LOCATOR_BYTES))
    tail = file.read()
    end = tail[-_END_BYTES:]
    if len(end) < _END_BYTES or end[:4] != _END or end[-2:] != b"\0\0":
        raise ValueError("it is not a ZIP file, or it is incomplete")
    if tail[:4] == _LOCATOR or int.from_bytes(end[12:16], "little") > _MAX_DIRECTORY:
        raise ValueError("its table of contents is larger than that of a packed policy, or in ZIP64 format")


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return a file of the archive; unlike ``ZipFile.read``, decompress at most one byte more than declared."""
    with archive.open(entry) as file:
        return file.read(entry.file_size + 1)


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    """Raise ``ValueError`` for names, kinds and sizes that a packed policy does not have."""
    names = [entry.orig_filename for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError(f"it contains {max(names, key=names.count)[:80]!r} twice")
    for entry in entries:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if entry.orig_filename not in FILES | {MANIFEST}:
            raise ValueError(f"it contains {entry.orig_filename[:80]!r}, which no packed policy has")
        if kind not in (0, stat.S_IFREG):
            raise ValueError(f"{entry.filename} is a link or a special file")
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{entry.filename} is encrypted, or compressed by an unknown method")
        if entry.filename.endswith(".json") and entry.file_size > MAX_JSON:
            raise ValueError(f"{entry.filename} has more than {MAX_JSON:,} bytes")
        if entry.file_size > max(_SMALL, MAX_RATIO * entry.compress_size):
            raise ValueError(f"{entry.filename} is compressed by more than a factor of {MAX_RATIO}")
    if sum(entry.file_size for entry in entries) > MAX_CONTENT:
        raise ValueError(f"its files have more than {MAX_CONTENT:,} bytes")


def _check_manifest(contents: Mapping[str, bytes]) -> None:
    """Raise ``ValueError`` unless the manifest is valid and matches the names and digests of the files."""
    if MANIFEST not in contents:
        raise ValueError(f"it has no {MANIFEST}")
    manifest = json.loads(contents[MANIFEST])
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{MANIFEST} does not describe a policy")
    if manifest.get("version") != VERSION:
        raise ValueError(f"it has version {manifest.get('version')!r:.20}, but this program reads version {VERSION}")
    digests = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    names = contents.keys() - {MANIFEST}
    missing = sorted((_REQUIRED | digests.keys()) - names) or sorted(names - digests.keys())
    if missing:
        raise ValueError(f"{missing[0][:80]!r} is missing in the archive or in its {MANIFEST}")
    changed = sorted(name for name in names if _sha256(contents[name]) != digests[name])
    if changed:
        raise ValueError(f"{changed[0]} does not match its SHA-256 in {MANIFEST}")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
