"""The repository keeps the architecture rules, and each rule fails on a small broken tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import architecture, text_rules
from tests.support.source_tree import SourceFile, read_tree, tracked_texts

ROOT = Path(__file__).resolve().parent.parent
DOC = '"""Doc."""\n'
_TOO_MANY = architecture.MAX_MATCHED_SENTENCES + 1


@pytest.fixture(scope="module")
def repository() -> list[SourceFile]:
    return read_tree(ROOT)


@pytest.mark.parametrize("rule", architecture.RULES, ids=lambda rule: rule.__name__)
def test_repository_keeps(rule: architecture.Rule, repository: list[SourceFile]) -> None:
    breaches = rule(repository)
    assert not breaches, rule.__doc__ + "\n" + "\n".join(breaches)


def test_private_parts_of_jax_are_used_in_one_file_of_the_long_lane(repository: list[SourceFile]) -> None:
    private = {f.path for f in repository if any(name.startswith("jax._src") for name, _ in f.imports)}
    assert private == {"tests/support/jax_internals.py"}
    users = {f.path for f in repository if any(name.startswith("tests.support.jax_internals") for name, _ in f.imports)}
    assert users == {"tests/conftest.py", "tests/support/trained_together.py"}  # test_launch.py, in the long lane


def test_tracked_files_name_no_machine() -> None:
    breaches = [b for path, text in tracked_texts(ROOT) for b in text_rules.portable_text(path, text)]
    assert not breaches, "\n".join(breaches)


def test_import_of_the_package_loads_no_environment_or_service() -> None:
    heavy = ["brax", "gymnax", "mujoco", "matplotlib", "tensorboardX", "wandb", "orbax", "hydra", "rich.progress"]
    heavy += ["gymnasium", "envpool", "pettingzoo", "ale_py", "ray", "multiprocessing.connection"]
    code = f"import sys, evorl, evorl.envs; print([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "[]", f"import evorl loads {result.stdout}{result.stderr}"


def _function(num_lines: int) -> str:
    return DOC + f"def f():\n    {DOC}" + "    x = 1\n" * (num_lines - 2)


def _tree(**files: str) -> dict[str, str]:
    """Return files by path, with two underscores as slash."""
    plain = {name: name.replace("__init__", "INIT").replace("__", "/").replace("INIT", "__init__") for name in files}
    return {f"{plain[name]}.py": text for name, text in files.items()}


_EXPORTS = "if TYPE_CHECKING:\n    from evorl.agents.a import {kept}\nlazy_exports('', a='{late}')"

# rule, broken tree, expected message, and a tree that is correct but otherwise equal
CASES = [
    ("layers", _tree(evorl__rollout="import evorl.workflows"), "above", _tree(evorl__rollout="import evorl.agent")),
    (
        "layers",
        _tree(evorl__agent="def f():\n    from evorl.rollout import rollout"),
        "above",
        _tree(evorl__agent="def f():\n    from evorl.ops import returns"),
    ),
    (
        "layers",
        _tree(evorl__ops__returns="from ..agent import Agent"),
        "above",
        _tree(evorl__ops__returns="from ..types import State"),
    ),
    (
        "layers",
        _tree(evorl__types="import importlib\nimportlib.import_module('evorl.cli')"),
        "above",
        _tree(evorl__cli="import importlib\nimportlib.import_module('evorl.types')"),
    ),
    (
        "layers",
        _tree(evorl__agent="from evorl import RandomAgent"),
        "defines it",
        _tree(evorl____init__="from evorl.agent import RandomAgent"),
    ),
    ("layers", _tree(evorl__attic="x = 1"), "no layer", _tree(evorl__types="x = 1")),
    (
        "algorithms_stand_alone",
        _tree(evorl__algorithms__sac="from evorl.algorithms.ppo import loss"),
        "another algorithm",
        _tree(evorl__algorithms____init__="from evorl.algorithms.ppo import loss"),
    ),
    (
        "algorithms_stand_alone",
        _tree(evorl__algorithms__tqc="from evorl.algorithms.sac import SAC, loss"),
        "another algorithm",
        _tree(evorl__algorithms__tqc="from evorl.algorithms.sac import SAC, loss\nclass TQC(SAC): ..."),
    ),
    (
        "exports_of_packages",
        _tree(evorl__agents____init__=_EXPORTS.format(kept="A", late="A B")),
        "evorl.agents.a.B",
        _tree(evorl__agents____init__=_EXPORTS.format(kept="B", late="B")),
    ),
    (
        "exports_of_packages",
        _tree(evorl__agents____init__=_EXPORTS.format(kept="A", late="")),
        "does not load late",
        _tree(evorl__agents__a=_EXPORTS.format(kept="A", late="")),
    ),
    (
        "exports_of_packages",
        _tree(evorl__agents____init__="if TYPE_CHECKING:\n    from evorl.envs.a import A"),
        "defined elsewhere",
        _tree(evorl____init__="if TYPE_CHECKING:\n    from evorl import a\nlazy_exports('', packages='a')"),
    ),
    (
        "no_circles",
        _tree(evorl__a="import evorl.b", evorl__b="def f():\n    from evorl.c import x", evorl__c="import evorl.a"),
        "evorl/a.py -> evorl/b.py -> evorl/c.py",
        _tree(evorl__a="import evorl.b", evorl__b="from evorl.c import x", evorl__c=""),
    ),
    (
        "layers",
        _tree(evorl__agent='f = "evorl.rollout:rollout"'),
        "above",
        _tree(evorl__rollout='f = "evorl.agent:Agent"'),
    ),
    (
        "no_circles",
        _tree(evorl__a='f = "evorl.b:g"', evorl__b="import evorl.a"),
        "evorl/a.py -> evorl/b.py",
        _tree(evorl__a='f = "evorl.b"', evorl__b="import evorl.a"),
    ),
    (
        "late_names_in_tables",
        _tree(evorl__agent='f = "evorl.ops.trees:pack"'),
        "loads evorl.ops.trees.pack late",
        _tree(evorl__cli__command_table='f = "evorl.ops.trees:pack"'),
    ),
    (
        "late_names_in_tables",
        _tree(evorl__agent="from evorl.config.names import load"),
        "only readers of tables",
        _tree(evorl__cli__commands="from evorl.config.names import load"),
    ),
    (
        "no_circles",
        _tree(
            evorl__a="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B",
            evorl__b="import evorl.a",
        ),
        "circle",
        _tree(evorl__a="from typing import TYPE_CHECKING", evorl__b="import evorl.a"),
    ),
    (
        "libraries_at_home",
        _tree(evorl__envs__env="def f():\n    import brax.envs"),
        "brax",
        _tree(evorl__envs__brax="import brax.envs"),
    ),
    (
        "libraries_at_home",
        _tree(evorl__recorders__wandb="import wandb"),
        "optional",
        _tree(evorl__recorders__wandb="def f():\n    import wandb"),
    ),
    (
        "devices_in_one_place",
        _tree(evorl__agent="import jax as j\nn = j.device_count()"),
        "jax.device_count",
        _tree(evorl__execution__programs="import jax\nn = jax.device_count()"),
    ),
    (
        "devices_in_one_place",
        _tree(evorl__agent="from jax.sharding import Mesh"),
        "Mesh",
        _tree(evorl__agent="from jax.numpy import where"),
    ),
    (
        "devices_in_one_place",
        _tree(evorl__agent="from jax import lax\ny = lax.psum(1, 'data')"),
        "psum",
        _tree(evorl__ops__collectives="from jax import lax\ny = lax.psum(1, 'data')"),
    ),
    (
        "modern_jax",
        _tree(evorl__agent="import jax.random as jr\nkey = jr.PRNGKey(0)"),
        "PRNGKey",
        _tree(evorl__agent="import jax.random as jr\nkey = jr.key(0)"),
    ),
    (
        "modern_jax",
        _tree(evorl__agent="from jax import pmap"),
        "pmap",
        _tree(evorl__agent="import jax\njax.tree.map"),
    ),
    ("no_pickle", _tree(tests__test_a="import pickle"), "pickle", _tree(tests__test_a="import json")),
    (
        "no_pickle",
        _tree(evorl__agent="import numpy as np\nnp.load('x', allow_pickle=True)"),
        "allow_pickle",
        _tree(evorl__agent="import numpy as np\nnp.load('x', allow_pickle=False)"),
    ),
    ("file_sizes", _tree(tests__test_a="x = 1\n" * 351), "351 lines", _tree(tests__test_a="x = 1\n" * 350)),
    ("file_sizes", _tree(evorl__algorithms__a="x = 1\n" * 251), "251", _tree(evorl__workflows__a="\n" * 150)),
    ("file_sizes", _tree(scripts__train="x = 1\n" * 31), "31", _tree(scripts__train="x = 1\n" * 30)),
    ("file_sizes", _tree(evorl__a="\n" * 151, evorl__b="\n" * 151), "median", _tree(evorl__a="\n" * 150)),
    ("function_sizes", _tree(tests__a=_function(71)), "71 lines", _tree(tests__a=_function(70))),
    ("function_sizes", _tree(evorl__algorithms__a=_function(41)), "41", _tree(evorl__algorithms__a=_function(40))),
    (
        "function_sizes",
        _tree(evorl__a=_function(45), evorl__b=_function(45)),
        "one function in ten",
        _tree(evorl__a=_function(40), evorl__b=_function(9)),
    ),
    ("plain_names", _tree(evorl__env_utils="x = 1"), "nothing", _tree(evorl__envs__space="x = 1")),
    ("plain_names", _tree(evorl__a="class FooV2: pass"), "version", _tree(evorl__a="class Foo: pass")),
    (
        "class_depth",
        _tree(
            evorl__a="class A: ...\nclass B(A): ...\nclass C(B): ...\nclass D(C): ...\nclass E(D): ...\nclass F(E): ..."
        ),
        "F stands 5",
        _tree(
            evorl__a="import x\nclass A(x.Z): ...\nclass B(A): ...\nclass C(B): ...\nclass D(C): ...\nclass E(D): ..."
        ),
    ),
    ("documented", _tree(evorl__a="x = 1"), "module", _tree(evorl__a=DOC)),
    ("documented", _tree(evorl__a=DOC + "def f(): ..."), "f has no", _tree(evorl__a=DOC + "def _f(): ...")),
    (
        "documented",
        _tree(evorl__a=DOC + f"class A:\n    {DOC}    def f(self): ..."),
        "A.f",
        _tree(
            evorl__a=DOC
            + f"class A:\n    {DOC}    def f(self):\n        {DOC}class B(A):\n    {DOC}    def f(self): ..."
        ),
    ),
    (
        "documented",
        _tree(
            evorl__a=DOC + f"class A:\n    {DOC}    def f(self):\n        {DOC}",
            evorl__b=DOC + f"class A:\n    {DOC}",
            evorl__c=DOC + f"from evorl.b import A\nclass C(A):\n    {DOC}    def f(self): ...",
        ),
        "C.f",
        _tree(
            evorl__a=DOC + f"class A:\n    {DOC}    def f(self):\n        {DOC}",
            evorl__b=DOC + f"class A:\n    {DOC}",
            evorl__c=DOC + f"from evorl.a import A\nclass C(A):\n    {DOC}    def f(self): ...",
        ),
    ),
    ("asserts_speak", _tree(evorl__a="assert True"), "message", _tree(evorl__a="assert True, 'why'")),
    (
        "errors_by_parts",
        _tree(tests__test_a="raises(ValueError, match='one sentence of five words')\n" * _TOO_MANY),
        "raises_naming",
        _tree(tests__test_a="raises(ValueError, match='num_envs.* got 0')\n" * _TOO_MANY),
    ),
    (
        "mirror_tests",
        _tree(evorl__ops__a="\n", tests__test_a="\n" * 9),
        "1 of 1",
        _tree(evorl__ops__a="\n", tests__ops__test_a="\n" * 9),
    ),
    (
        "mirror_tests",
        _tree(evorl__a="\n" * 99, tests__test_a="\n"),
        "of source",
        _tree(evorl__a="\n" * 10, tests__test_a="\n" * 6),
    ),
]


def _read(tmp_path: Path, files: dict[str, str]) -> list[SourceFile]:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return read_tree(tmp_path)


@pytest.mark.parametrize(("name", "broken", "message", "right"), CASES, ids=[f"{c[0]}-{c[2]}" for c in CASES])
def test_rule_bites(name: str, broken: dict, message: str, right: dict, tmp_path: Path) -> None:
    rule = getattr(architecture, name)
    breaches = rule(_read(tmp_path / "broken", broken))
    assert any(message in breach for breach in breaches), f"{name} let it pass, or said something else: {breaches}"
    assert rule(_read(tmp_path / "right", right)) == []


def test_every_rule_is_broken_once() -> None:
    assert {case[0] for case in CASES} == {rule.__name__ for rule in architecture.RULES}


@pytest.mark.parametrize("line", ["see https://pypi" + ".org/x", "cd /ho" + "me/ann/evorl", "open('/wo" + "rk/a')"])
def test_portable_text_bites(line: str) -> None:
    assert text_rules.portable_text("README.md", f"fine\n{line}\n")


@pytest.mark.parametrize("line", ["python scripts/train.py", "~/.cache/evorl", "a/tmp/b", "PyPI", "work/home"])
def test_portable_text_lets_plain_text_pass(line: str) -> None:
    assert text_rules.portable_text("README.md", line) == []
