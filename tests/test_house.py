"""Code quality measures stay within their bars, and each measure detects its problem."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import house
from tests.support.source_tree import SourceFile, closure, import_graph


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    """Run the measures in a process that has traced nothing yet."""
    command = [sys.executable, "-m", "tests.house", "--json"]
    done = subprocess.run(command, cwd=house.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", house.BARS)
def test_a_bar_is_kept(measured: dict[str, float], name: str) -> None:
    assert 0 <= measured[name] <= house.BARS[name], "see `make house`"


def test_traces_are_not_empty(measured: dict[str, float]) -> None:
    assert all(measured[name] > 5 for name in measured if "enters" in name or "reads" in name)


def test_lines_of_another_file_are_seen(tmp_path: Path) -> None:
    for name, text in {"a": "x: 1 # one\ny: 2\n", "b": "x: 1 # one\n# y: 2\nz: 2\n"}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    assert house.repeated_share(tmp_path) == 50.0


def test_defaults_are_compared_wherever_they_stand() -> None:
    from evorl.algorithms.a2c import A2CWorkflow

    config = {"discount": 0.99, "gae_lambda": 0.5, "optimizer": {"name": "adam"}, "agent": {"normalize_obs": True}}
    pairs = list(house._with_defaults(A2CWorkflow, config))
    assert sorted(value == default for value, default in pairs) == [False, False, True, True]


def test_a_closure_has_packages_and_what_they_import() -> None:
    files = {
        "evorl/__init__.py": "from evorl.a import x",
        "evorl/a.py": "",
        "evorl/r/__init__.py": "import evorl.c",
        "evorl/r/b.py": "def f():\n    import evorl.d",
        "evorl/c.py": "",
        "evorl/d.py": "",
        "evorl/e.py": "import evorl.a",
    }
    graph = import_graph([SourceFile(path, text) for path, text in files.items()])
    assert closure(graph, "evorl/r/b.py") == files.keys() - {"evorl/e.py"}


SOURCE = """
from omegaconf import DictConfig


class A:
    x: int = 1
    y: ClassVar[int] = 2

    def f(self, a, b, c, d, e, config: DictConfig, *, g):
        import os
        return load("evorl.ops.trees:pack")

    def g(self, a, b, c, d, e, f, h):
        return a  # what is it
"""


def test_measures_of_the_source_count() -> None:
    files = [SourceFile("evorl/a.py", SOURCE), SourceFile("tests/a.py", SOURCE)]
    measures = house.house_measures
    assert measures.functions_of_config(files) == measures.functions_of_dict_config(files) == 1
    assert measures.imports_in_functions(files) == measures.other_load_strings(files) == 1
    assert measures.load_strings_in_tables(files) == 0
    table = SourceFile("evorl/cli/command_table.py", SOURCE)
    assert (measures.load_strings_in_tables([table]), measures.other_load_strings([table])) == (1, 0)
    assert measures.functions_of_many_positions(files) == 1
    assert measures.english_breaches(files) == 1
    assert measures.interface(files, "evorl/a.py", "A") == (2, 1, 1)
    assert measures.package_lines(files) == SOURCE.count("\n")
