"""Uploads packed policies to the Hugging Face Hub, and downloads them from there; needs the extra ``hub``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evorl.runs.download import download, within_time
from evorl.runs.files import RunFolderError, make_private_folder, user_cache, write_atomically, writing_to
from evorl.runs.policy_archive import MAX_BYTES

SCHEME = "hf://"
FILE = "policy.zip"  # name of the archive in a repository
_NAME = r"[A-Za-z0-9][\w.-]*"
_ADDRESS = re.compile(rf"hf://({_NAME}/{_NAME})(?:@([\w./-]+))?", re.ASCII)


class HubAddress(NamedTuple):
    """A model repository on the Hub.

    Attributes:
        repository: ``<owner>/<name>``.
        revision: a branch, a tag or a commit; ``None`` for the main branch.
    """

    repository: str
    revision: str | None

    @classmethod
    def read(cls, address: str) -> HubAddress:
        """Parse ``hf://<owner>/<name>[@<revision>]``; raise ``RunFolderError`` if the address is malformed."""
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise RunFolderError(f"{address} is not an address of the Hub: expected hf://<owner>/<name>[@<revision>].")
        return cls(match[1], match[2])


def download_from_hub(address: str) -> Path:
    """Download ``policy.zip`` from an address ``hf://...`` into the user's cache, unless it is there; return its path.

    Raises:
        RunFolderError: the address is invalid; the file does not exist, is too large or cannot be downloaded or stored.
        ImportError: the extra ``hub`` is not installed.
    """
    hub, (repository, revision), endpoint = _library(), HubAddress.read(address), _endpoint()
    try:
        url = hub.hf_hub_url(repository, FILE, revision=revision, endpoint=endpoint)
        file = within_time(address, lambda: hub.get_hf_file_metadata(url, endpoint=endpoint))
    except RunFolderError:
        raise
    except Exception as error:  # errors of the library and of its HTTP client share no base class
        raise _failed(f"{address} was not downloaded", error) from error
    if not re.fullmatch(r"[0-9a-f]{40}", file.commit_hash or ""):
        raise RunFolderError(f"{address} was not downloaded: the response of {url} names no commit, as the Hub's do.")
    if file.size is None or file.size > MAX_BYTES:
        size = "an unknown size" if file.size is None else f"{file.size:,} bytes"
        raise RunFolderError(f"{address}: {FILE} has {size}, but at most {MAX_BYTES:,} bytes are allowed.")
    folder = user_cache("hub").resolve()
    make_private_folder(folder)
    path = folder / f"{repository.replace('/', '--')}--{file.commit_hash}.zip"
    if not path.is_file():
        # Address the commit: the file of a branch could change between the two requests.
        pinned = hub.hf_hub_url(repository, FILE, revision=file.commit_hash, endpoint=endpoint)
        content = download(pinned, file.size, hub.utils.build_hf_headers())
        if len(content) != file.size:
            raise RunFolderError(f"{address} was cut off after {len(content):,} of {file.size:,} bytes: try again.")
        with writing_to(path.parent):
            write_atomically(path, content)
    return path


def upload_to_hub(address: str, files: Mapping[str, bytes], message: str) -> str:
    """Upload ``files`` (content by name) in one commit to ``hf://<owner>/<name>[@<branch>]``; return its web page.

    The model repository is created unless it exists. ``message`` is the commit message.

    Raises:
        RunFolderError: the address is invalid, or the Hub cannot be reached or rejects the upload (e.g. no token).
        ImportError: the extra ``hub`` is not installed.
    """
    hub, (repository, revision) = _library(), HubAddress.read(address)
    try:
        api = hub.HfApi(endpoint=_endpoint())
        api.create_repo(repository, exist_ok=True)
        operations = [hub.CommitOperationAdd(name, content) for name, content in sorted(files.items())]
        return str(api.create_commit(repository, operations, commit_message=message, revision=revision).commit_url)
    except Exception as error:  # as in ``download_from_hub``
        advice = "If you are not logged in, run hf auth login, or set HF_TOKEN"
        raise _failed(f"{address} was not uploaded", error, advice) from error


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            'addresses that start with hf:// need the package huggingface_hub: pip install "evorl-engine[hub]"'
        ) from error
    return huggingface_hub


def _endpoint() -> str | None:
    """Return the current ``HF_ENDPOINT``, ``None`` if unset; the library reads the variable only when imported."""
    return os.environ.get("HF_ENDPOINT") or None


def _failed(problem: str, error: Exception, advice: str | None = None) -> RunFolderError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return RunFolderError(f"{problem}: {reason[:300].rstrip('.')}.{f' {advice}.' if advice else ''}")
