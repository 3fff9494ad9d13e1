"""No text or message installs the foreign projects that package indexes list as evorl or evorl-jax."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml
from packaging.utils import canonicalize_name

from evorl.distribution import DISTRIBUTION
from tests.support.apps import ROOT

OF_OTHERS = {"evorl", "evorl-jax"}
INSTALLS = re.compile(r"(?:pip3?|uv pip|pipx|uv tool|conda)\s+install\s+([^\n`#;|&]*)")
WITH_EXTRAS = re.compile(r"(?<![\w./-])evorl(?:[-_]jax)?\s*(?:\[[a-z][\w, -]*\]|[=<>~!]=\s*\d)")
REQUIREMENT = re.compile(r"[A-Za-z][\w.-]*")


def texts() -> dict[str, str]:
    """Return all texts of the repository by path, except for this file."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    found = {}
    for name in listed:
        path = ROOT / name
        if name and path.is_file() and not name.startswith("benchmarks/results/") and name != "tests/test_installs.py":
            try:
                found[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    return found


def strangers(text: str) -> list[str]:
    """Return foreign projects that a text installs or requires."""
    found = [match[0] for match in WITH_EXTRAS.finditer(text)]
    for line in INSTALLS.finditer(text):
        for word in re.findall(r"[^\s\"'()]+", line[1]):
            name = REQUIREMENT.match(word)
            if name and canonicalize_name(name[0].rstrip(".")) in OF_OTHERS and word[0] != "-":
                found.append(line[0])
    return found


def test_nothing_installs_another_project() -> None:
    found = {name: installed for name, text in texts().items() if (installed := strangers(text))}
    assert found == {}


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("pip install evorl", True),
        ("run `pip install 'evorl[serve]'` first", True),
        ('RUN pip install --no-cache-dir "evorl[serve]==0.1.0" pyyaml', True),
        ("pip install -U evorl-jax", True),
        ("pip install jax evorl_jax", True),
        ("uv pip install evorl==2.0.0", True),
        ('explain_missing_package("pages", "aiohttp", "evorl[serve]")', True),
        ('test = ["evorl[atari,serve]"]', True),
        ("evorl-jax>=0.1", True),
        ('pip install -c constraints.txt -e ".[serve]"', False),
        ("pip install aiohttp", False),
        ('RUN pip install "/wheels/evorl_engine-0.1.0-py3-none-any.whl[serve]"', False),
        ("pip install 'evorl-engine[serve]'", False),
        ("evorl.cli.main; versions['evorl']", False),
    ],
)
def test_it_bites(text: str, is_one: bool) -> None:
    assert bool(strangers(text)) is is_one


def test_one_name_everywhere() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nname = "{DISTRIBUTION}"' in pyproject
    assert canonicalize_name(DISTRIBUTION) not in OF_OTHERS
    for page in ("README.md", "docs/index.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert f"The distribution is called `{DISTRIBUTION}`" in text
        assert "`evorl` and `evorl-jax` on package indexes are other projects" in text
    conda = yaml.safe_load((ROOT / "environment.yaml").read_text(encoding="utf-8"))
    assert conda["dependencies"][-1] == {"pip": ["-c constraints.txt", "-e ."]}
