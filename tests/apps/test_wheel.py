"""The wheel that evorl builds of itself equals the package; containers install it and no other package of that name."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

import evorl
from evorl.apps import wheel
from evorl.apps.app_text import with_entry
from evorl.apps.wheel import write_wheel
from evorl.cli import app_run
from evorl.cli.app_commands import generate_from_arguments, new_from_arguments
from tests.support.apps import ROOT
from tests.support.errors import raises_naming

SERVICE_KEYS = {"build", "command", "environment", "volumes", "depends_on", "stop_grace_period"}
VARIABLE = re.compile(r"\$\{(\w+)(?::?\?([^}]*))?\}")


@dataclass
class Image:
    """Result of a Dockerfile build: files below ``root``, installed requirements and the command."""

    root: Path
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    from_index: list[str] = field(default_factory=list)

    def path(self, name: str) -> Path:
        return self.root / str(Path(self.workdir) / name).lstrip("/")


def build_image(context: Path, root: Path) -> Image:
    """Interpret a Dockerfile in a folder; wheels of the context are installed without dependencies."""
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
    """Return the services of ``compose.yaml`` with variables filled in; assert that Compose would accept it."""

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


SECRETS = {"EVORL_SERVER_TOKEN": "a long word", "EVORL_PARAMETERS_TOKEN": "another word"}
SAYS = "import evorl, evorl.cli.config_tree as c; print(evorl.__file__, evorl.__version__, c.config_folder())"


def test_the_wheel_has_all_files_of_the_tree_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, again = (write_wheel(tmp_path / name, ROOT / "configs") for name in ("a", "b"))
    assert first.name == f"evorl_engine-{evorl.__version__}-py3-none-any.whl"
    assert first.read_bytes() == again.read_bytes()
    names = set(zipfile.ZipFile(first).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "evorl", "configs"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    there = [name for name in tracked if (ROOT / name).is_file()]
    assert {f"evorl/{name}" if name.startswith("configs/") else name for name in there} <= names
    assert not [name for name in names if "__pycache__" in name]
    about = zipfile.ZipFile(first).read(f"evorl_engine-{evorl.__version__}.dist-info/METADATA").decode()
    assert "\nName: evorl-engine\n" in about
    assert re.search(r"^Requires-Dist: aiohttp.*extra == 'serve'", about, re.MULTILINE)


def test_a_tree_that_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "DISTRIBUTION", "evorl-not-installed")
    with raises_naming(ValueError, "not installed", "pip install -c constraints.txt -e ."):
        write_wheel(tmp_path, ROOT / "configs")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Build the image of a bandit app."""
    folder = tmp_path_factory.mktemp("containers")
    before = Path.cwd()
    os.chdir(folder)
    try:
        new_from_arguments(["bandit"])
        os.chdir("bandit")
        (folder / "bandit" / "runs").mkdir()
        generate_from_arguments(["docker=true"])
    finally:
        os.chdir(before)
    return build_image(folder / "bandit", folder / "image")


def test_the_image_has_this_evorl_and_the_app(image: Image) -> None:
    assert image.from_index == []
    assert image.entrypoint == ["evorl", "run"]
    assert sorted(path.name for path in image.path(".").iterdir() if path.name[0] != ".") == [
        "Dockerfile",
        "app.yaml",
        "compose.yaml",
        "environment",
        "wheels",
    ]
    site = image.root / "site"
    variables = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-P", "-c", SAYS]
    done = subprocess.run(command, cwd=image.path("."), env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(site / "evorl/__init__.py"), evorl.__version__, str(site / "evorl/configs")]
    assert {path.name for path in (site / "bin").iterdir()} >= {"evorl", "evorl-train"}


@pytest.mark.parametrize("parameters", [None, "{servers: 2}"])
def test_compose_starts_parts_of_the_app(
    parameters: str | None, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "app"
    shutil.copytree(image.path("."), folder)
    monkeypatch.chdir(folder)
    if parameters:
        file = folder / "app.yaml"
        file.write_text(with_entry(file.read_text(), "parameters", f"parameters: {parameters}"))
        generate_from_arguments(["docker=true"])
    started: list[tuple[str, ...]] = []

    def supervise(servers: list[Any], environments: list[Any], *_: Any) -> int:
        started.append(tuple(program.name for program in (*servers, *environments) if program.command))
        return 0

    monkeypatch.setattr(app_run, "supervise", supervise)
    services = checked_services(folder, SECRETS)
    for service in services.values():
        run_as(service, monkeypatch)
    if parameters:
        assert started == [
            ("parameters",),
            ("server-0",),
            ("server-1",),
            ("environment-0", "environment-1"),
            ("environment-0", "environment-1"),
        ]
    else:
        assert started == [("server",), ("environment-0",)]


def run_as(service: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a service's command with its environment variables."""
    with monkeypatch.context() as context:
        for name, value in service["environment"].items():
            context.setenv(name, value)
        assert app_run.run_from_arguments(service["command"]) == 0


def test_docker_reads_the_compose_file_where_it_is_there(image: Image) -> None:
    command = ["docker", "compose", "config", "--quiet"]
    docker = shutil.which("docker")
    has_compose = docker and not subprocess.run([docker, "compose", "version"], capture_output=True).returncode
    if not has_compose:
        assert checked_services(image.path("."), SECRETS)
        return
    done = subprocess.run(command, cwd=image.path("."), env={**os.environ, **SECRETS}, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_a_simulator_names_the_packages_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    new_from_arguments(["doom", "env=vizdoom"])
    monkeypatch.chdir("doom")
    generate_from_arguments(["docker=true"])
    assert build_image(tmp_path / "doom", tmp_path / "image").from_index == ["vizdoom"]
