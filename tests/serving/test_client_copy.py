"""The client copy for simulators works alone: in a Python without this package and NumPy."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evorl.serving import rlx
from evorl.serving.client_copy import client_text, main
from tests.support.doc_pages import ROOT
from tests.support.errors import raises_naming
from tests.support.rlx_server import RlxServer, agent_answers

VECTORS = ROOT / "evorl" / "serving" / "rlx_vectors.json"
ALONE = """
import json, sys
sys.path.insert(0, ".")
import evorl_client as client

for vector in json.load(open(sys.argv[1], encoding="utf-8"))["messages"][:11]:
    wire = bytes.fromhex(vector["wire"])
    message = client.decode(wire)
    if "ndarray" not in vector["name"]:
        assert client.encode(message) == wire, vector["name"]
    assert client.FrameReader().feed(bytes.fromhex(vector["framed"])) == [wire]


class Reversed(client.TrainingBase):
    def episode(self, number):
        action = self.agent.update(None, [1, 0])
        print(json.dumps([action, self.agent.update(1.0, client.Image("L", 2, 1, b"ab"), True)]))
        return 1.0


Reversed(sys.argv[2], {"environment": {"max_episodes": 2}}).run()
picture = client.decode(client.encode({"p": client.Image("L", 2, 1, b"ab")}))["p"]
print(type(picture).__name__, sorted({"numpy", "evorl", "jax"} & set(sys.modules)))
"""


def run_alone(folder: Path, *flags: str) -> list[str]:
    """Return the output of a program that imports the copy; the server's actions are arrays."""
    main([str(folder / "evorl_client.py")])
    with RlxServer(agent_answers(lambda state: np.float32([state, state[::-1]]))) as server:
        command = [sys.executable, *flags, "-c", ALONE, str(VECTORS), server.address]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [message["command"] for message in server.messages].count("update_metrics") == 2
    return done.stdout.splitlines()


def test_it_works_without_numpy_and_without_this_package(tmp_path: Path) -> None:
    *episodes, last = run_alone(tmp_path, "-I", "-S", "-W", "error")
    assert [json.loads(line) for line in episodes] == [[[[1.0, 0.0], [0.0, 1.0]], None]] * 2
    assert last == "Image []"


def test_with_numpy_arrays_are_arrays(tmp_path: Path) -> None:
    program = "import evorl_client as c, numpy as np; a = c.decode(c.encode({'a': np.eye(2)}))['a']; print(a.tolist())"
    main([str(tmp_path / "evorl_client.py")])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "[[1.0, 0.0], [0.0, 1.0]]\n", done.stderr


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [("float32", (), 0.0), ("int8", (0,), []), ("bool", (2, 1, 2), [[[False, False]], [[False, False]]])],
)
def test_arrays_as_lists(name: str, shape: tuple[int, ...], expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = rlx.encode({"a": np.zeros(shape, name)})
    monkeypatch.setattr(rlx, "_numpy", lambda: None)
    assert rlx.decode(payload) == {"a": expected}


def test_arrays_as_lists_have_no_more_values_than_a_list_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [rlx.encode({"a": np.zeros(shape)}) for shape in ((4,), (0, 4))]
    monkeypatch.setattr(rlx, "_numpy", lambda: None)
    for payload in payloads:
        with raises_naming(rlx.ProtocolError, "too large"):
            rlx.decode(payload, rlx.Limits(max_values=3))


def test_it_is_one_file_in_the_words_of_python_3_8() -> None:
    tree = ast.parse(client_text(), feature_version=(3, 8))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert {str(name).split(".")[0] for name in imported} <= {*sys.stdlib_module_names, "numpy"}
    assert not any(str(name).startswith("evorl") for name in imported)
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert len(names) == len(set(names)), "the two parts define the same name"


def test_the_command_prints_or_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert capsys.readouterr().out == client_text()
    for wrong in (["--help"], ["one.py", "two.py"]):
        with raises_naming(SystemExit, "usage: python -m"):
            main(wrong)
