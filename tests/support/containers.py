"""A Dockerfile and a compose file checked without Docker: the image is built in a folder, offline, and the services'
keys, variables and references are compared with what the Compose specification allows.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

SERVICE_KEYS = {"build", "command", "environment", "volumes", "depends_on", "stop_grace_period"}
VARIABLE = re.compile(r"\$\{(\w+)(?::?\?([^}]*))?\}")


@dataclass
class Image:
    """What a Dockerfile builds: files below ``root``, and what it installs and starts."""

    root: Path
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    from_index: list[str] = field(default_factory=list)

    def path(self, name: str) -> Path:
        return self.root / str(Path(self.workdir) / name).lstrip("/")


def build_image(context: Path, root: Path) -> Image:
    """Do what a Dockerfile says in a folder. Wheels of the context are installed without their requirements."""
    ignored = [line for line in (context / ".dockerignore").read_text().splitlines() if line]
    image = Image(root)
    lines = [line for line in (context / "Dockerfile").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0].startswith("FROM python:"), lines[0]
    for line in lines[1:]:
        instruction, _, words = line.partition(" ")
        if instruction == "COPY":
            source, target = words.split()
            assert not any(fnmatch.fnmatch(source, pattern) for pattern in ignored), line
            shutil.copytree(context / source, image.path(target), dirs_exist_ok=True, ignore=_ignoring(ignored))
        elif instruction == "RUN":
            _install(image, shlex.split(words))
        elif instruction == "WORKDIR":
            image.workdir = words
            image.path(".").mkdir(parents=True, exist_ok=True)
        else:
            assert instruction in ("ENTRYPOINT", "CMD"), line
            setattr(image, "entrypoint" if instruction == "ENTRYPOINT" else "command", json.loads(words))
    return image


def _ignoring(patterns: list[str]) -> Any:
    plain = [pattern.removeprefix("**/").rstrip("/") for pattern in patterns]
    return shutil.ignore_patterns(*plain)


def _install(image: Image, words: list[str]) -> None:
    assert words[:3] == ["pip", "install", "--no-cache-dir"], words
    for word in words[3:]:
        name = word.partition("[")[0]
        if not name.startswith("/"):
            image.from_index.append(word)
            continue
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
        target = image.root / "site"
        subprocess.run([*pip, "--no-index", "--no-deps", "--target", str(target), str(image.path(name))], check=True)


def checked_services(folder: Path, variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The services of ``compose.yaml`` with variables filled in; fails for what Compose would refuse."""

    def value(found: re.Match[str]) -> str:
        assert found[1] in variables, f"{found[1]} is not set: {found[2]}"
        return variables[found[1]]

    content = yaml.safe_load((folder / "compose.yaml").read_text())
    assert all(key == "services" or key.startswith("x-") for key in content), content.keys()
    services = json.loads(VARIABLE.sub(value, json.dumps(content["services"])))
    for name, service in services.items():
        assert re.fullmatch(r"[a-zA-Z0-9._-]+", name)
        assert service.keys() <= SERVICE_KEYS, service.keys()
        assert (folder / service["build"] / "Dockerfile").is_file()
        assert all(isinstance(word, str) for word in service["command"])
        assert all(isinstance(text, str) for text in service["environment"].values())
        assert set(service.get("depends_on", ())) <= services.keys()
        assert re.fullmatch(r"(\d+[hms])+", service.get("stop_grace_period", "10s"))
        for volume in service.get("volumes", ()):
            assert re.fullmatch(r"\./\w+:/[\w/]+", volume)
    return services
