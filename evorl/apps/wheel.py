"""Builds a wheel of the running evorl, to install in the container image of an app.

evorl is not on a package index, so an image cannot download it. The wheel is built from a clone or from an installed
package, without a build tool or network access.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib import metadata
from pathlib import Path

from evorl.distribution import DISTRIBUTION
from evorl.runs.files import replacing

_IGNORED = "__pycache__"
_BEGINNING_OF_ZIP = (1980, 1, 1, 0, 0, 0)  # the format's earliest date; a fixed date makes the bytes reproducible
_WHEEL = "Wheel-Version: 1.0\nGenerator: evorl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path, configs: Path) -> Path:
    """Write the wheel of the running package, which contains ``configs``, and return its path.

    The same sources give the same bytes. ``folder`` is created.

    Raises:
        ValueError: the package runs from a source tree that is not installed, so its requirements are unknown.
    """
    try:
        installed = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise ValueError(
            f"evorl runs from a source tree that is not installed, so its requirements are unknown ({error}): "
            "install it first with pip install -c constraints.txt -e . in the clone."
        ) from error
    stem = f"{DISTRIBUTION.replace('-', '_')}-{installed.version}"
    package = Path(__file__).resolve().parent.parent
    content = {f"evorl/{name}": data for name, data in _files(package).items() if not name.startswith("configs/")}
    content |= {f"evorl/configs/{name}": data for name, data in _files(configs).items()}
    content |= {f"{stem}.dist-info/{name}": text.encode() for name, text in _about(installed).items()}
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in content.items()]
    record = f"{stem}.dist-info/RECORD"
    content[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name, _BEGINNING_OF_ZIP), data, zipfile.ZIP_DEFLATED)
    return path


def _files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder by their POSIX paths, sorted."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and _IGNORED not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _about(installed: metadata.Distribution) -> dict[str, str]:
    """Return the files of the folder ``.dist-info`` by name, except ``RECORD``."""
    about = {name: installed.read_text(name) for name in ("METADATA", "entry_points.txt", "licenses/LICENSE")}
    return {name: text for name, text in about.items() if text is not None} | {"WHEEL": _WHEEL}


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
