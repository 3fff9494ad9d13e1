"""``evorl pack``: writes the trained policy of a run to one file, and uploads it to the Hugging Face Hub on request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evorl.cli.command_options import read_options
from evorl.cli.options import PACK
from evorl.config.command_lines import as_arguments, is_address
from evorl.config.gate import scope
from evorl.export.packed_policy import default_path, packed_files
from evorl.runs.best_run import find_run
from evorl.runs.hub import FILE, SCHEME, HubAddress, upload_to_hub
from evorl.runs.policy_archive import CARD, PAGE, REPORT, write_archive
from evorl.runs.shared_policy import SUFFIX


@scope()
def pack_from_arguments(arguments: Sequence[str]) -> Path:
    """Pack a run's policy into a file, print its path and SHA-256 digest, and upload it if ``to`` is an address."""
    settings, _ = read_options(arguments, PACK, "evorl pack")
    if not settings["run"]:
        raise ValueError("no run was given: use evorl pack run=<folder>, or run=latest.")
    to = settings["to"]
    upload = to if to is not None and to.startswith(SCHEME) else None
    if upload:
        HubAddress.read(upload)
    elif to is not None and (is_address(to) or Path(to).suffix.lower() != SUFFIX):
        raise ValueError(f"to={to} must be a file that ends in {SUFFIX}, or hf://<owner>/<name>.")
    folder = find_run(settings["run"], settings["runs_folder"])
    checkpoint = int(which) if (which := settings["checkpoint"]).isdigit() else which
    packed = packed_files(folder, checkpoint, settings["license"], settings["trust"])
    for notice in packed.notices:
        print(notice)
    path = default_path(folder) if to is None or upload else Path(to)
    digest = write_archive(path, packed.files, packed.about)
    print(f"{path}: {path.stat().st_size:,} bytes, sha256={digest}")
    if upload:
        shown = {name: packed.files[name] for name in (CARD, REPORT, PAGE) if name in packed.files}
        message = f"{packed.about['algorithm']} on {packed.about['env']}"
        print(f"{upload_to_hub(upload, {FILE: path.read_bytes(), **shown}, message)}")
    print(f"To use it: evorl evaluate {as_arguments({'run': upload or path})}")
    return path
