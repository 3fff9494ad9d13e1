"""Every place where text becomes code, and every place where untrusted files are read, is registered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import code_sinks
from tests.support.source_tree import SourceFile, read_tree

ROOT = Path(__file__).resolve().parent.parent
LOAD = "from evorl.config.names import load, load_all\n"


@pytest.fixture(scope="module")
def package() -> list[SourceFile]:
    return [file for file in read_tree(ROOT) if file.path.startswith(("evorl/", "scripts/"))]


def test_every_place_where_text_becomes_code_is_reviewed(package: list[SourceFile]) -> None:
    breaches = code_sinks.breaches(package, code_sinks.sinks, code_sinks.REVIEWED_SINKS)
    assert not breaches, "\n".join(breaches)


def test_every_place_that_reads_what_others_wrote_is_reviewed(package: list[SourceFile]) -> None:
    breaches = code_sinks.breaches(package, code_sinks.sources, code_sinks.REVIEWED_SOURCES)
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\ndef f(name):\n    return importlib.import_module(name)",
        "from importlib import import_module as imported\ndef f(name):\n    return imported(name)",
        "def f(name):\n    return __import__(name)",
        "def f(text):\n    eval(text)",
        "def f(text):\n    exec(compile(text, 'file', 'exec'))",
        "def f(name):\n    import gymnasium\n    return gymnasium.make(name)",
        "import gymnasium as gym\ndef f(name):\n    return gym.make_vec(name)",
        "def f(library, name):\n    return library.make(name)",
        "import optax\ndef f(name):\n    return getattr(optax, name)",
        "import importlib\ndef f(name):\n    return getattr(importlib.import_module('os'), name)",
        LOAD + "def f(name):\n    return load(name)",
        LOAD + "def f(name):\n    return load(f'evorl.{name}:make')",
        LOAD + "def f(name):\n    return load_all(name)",
        "import yaml\ndef f(text):\n    return yaml.load(text, yaml.Loader)",
        "import numpy as np\ndef f(path):\n    return np.load(path, allow_pickle=True)",
        "import pickle\ndef f(text):\n    return pickle.loads(text)",
        "from hydra.utils import instantiate\ndef f(config):\n    return instantiate(config)",
        "import hydra\ndef f(config):\n    return hydra.utils.get_class(config['_target_'])",
        "import subprocess\ndef f(command):\n    subprocess.run(command)",
        "import os\ndef f(command):\n    os.system(command)",
        "import ctypes\ndef f(path):\n    return ctypes.CDLL(path)",
        "import runpy\ndef f(path):\n    runpy.run_path(path)",
        "from importlib.metadata import entry_points\ndef f():\n    return entry_points(group='x')",
        "import sys\ndef f(folder):\n    sys.path.insert(0, folder)",
        "def f(run, command):\n    run(command, shell=True)",
    ],
)
def test_a_way_around_the_gate_is_found(text: str) -> None:
    (breach,) = code_sinks.breaches([SourceFile("evorl/around.py", text)], code_sinks.sinks, {})
    assert breach.startswith("evorl/around.py:")


@pytest.mark.parametrize(
    "text",
    [
        LOAD + "NAME = 'evorl.envs.env_check:check_env'\nload(NAME)\nload('evorl.a:b')\nload(f'{NAME}:c')",
        "from evorl.config.names import load_named\ndef f(name):\n    return load_named(name, 'env.factory')",
        "def f(node, name):\n    return getattr(node, name)",
        "import numpy as np\nnp.load('a', allow_pickle=False)",
    ],
)
def test_what_passes_the_gate_or_is_written_in_the_code_is_left_alone(text: str) -> None:
    assert not list(code_sinks.sinks(SourceFile("evorl/fine.py", text)))


@pytest.mark.parametrize(
    "call",
    ["folder.load_config(trust=True)", "SweepFolder.open(path)", "client.config()", "read_app(path)"],
)
def test_a_new_source_is_found(call: str) -> None:
    new = SourceFile("evorl/new.py", f"def f(folder, client, path):\n    return {call}")
    (breach,) = code_sinks.breaches([new], code_sinks.sources, {})
    assert breach.startswith("evorl/new.py:2:")


def test_a_place_that_is_gone_leaves_the_table() -> None:
    (breach,) = code_sinks.breaches([], code_sinks.sinks, {("evorl/gone.py", "f"): "no more"})
    assert breach == "evorl/gone.py: nothing is left in f(): drop it"
