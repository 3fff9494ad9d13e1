"""Names that packages export are loaded on first access."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import evorl
from evorl.exports import lazy_exports

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = "evorl agents algorithms envs networks replay_buffers workflows".split()


@pytest.mark.parametrize("name", PACKAGES)
def test_every_exported_name_exists_and_is_listed(name: str) -> None:
    package = evorl if name == "evorl" else importlib.import_module(f"evorl.{name}")
    assert len(package.__all__) > 5
    assert dir(package) == package.__all__ == sorted(package.__all__)
    for exported in package.__all__:
        assert getattr(package, exported) is not None


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="'evorl' has no attribute 'trian'"):
        evorl.trian  # noqa: B018
    load, listed, exported = lazy_exports("evorl", packages="envs", others="x", types="State")
    assert load("State") is evorl.State
    assert load("envs") is evorl.envs
    assert listed() == exported == ["State", "envs", "x"]
    with pytest.raises(AttributeError):
        load("x")  # the package defines it itself


def test_a_plain_import_loads_neither_jax_nor_a_part_of_evorl() -> None:
    code = (
        "import sys, evorl, evorl.algorithms, evorl.networks; dir(evorl)\n"
        "assert 'jax' not in sys.modules and 'hydra' not in sys.modules, 'the import loads JAX'\n"
        "print(sorted(name for name in sys.modules if name.startswith('evorl')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = [
        "evorl",
        "evorl.algorithms",
        "evorl.distribution",
        "evorl.exports",
        "evorl.networks",
        "evorl.xla_flags",
    ]
    assert done.stdout.strip() == str(loaded)
