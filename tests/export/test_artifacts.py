"""Every kind of policy in every format: read by processes without evorl and, except for StableHLO, without JAX."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evorl.export import artifacts
from evorl.export.artifacts import about, export_policy
from evorl.export.parity import Parity, ParityError, compared, recorded_steps
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming
from tests.support.optional_packages import need
from tests.support.portable import POLICIES, stored, stored_in_bfloat16

# Episodes of a few steps with memory, using only the exported files, NumPy, and for one format JAX.
WITHOUT_EVORL = """
import json, pathlib, sys
for absent in {absent}:
    sys.modules[absent] = None
import numpy as np

def compare(folder, step, about):
    recorded = np.load(folder / "recorded.npz")
    memory, apart = {{}}, 0.0
    for number in range(3):
        given = {{k.split("/", 2)[2]: v for k, v in recorded.items() if k.startswith(f"in/{{number}}/")}}
        rows = len(next(iter(given.values())))
        if not memory:
            memory = {{p["name"]: np.zeros([rows, *p["shape"][1:]], p["dtype"])
                      for p in about["inputs"] if p["name"] in about["memory"]}}
        told = step({{**given, **memory}})
        memory = {{name: np.asarray(told[after]) for name, after in about["memory"].items()}}
        for name, x in told.items():
            expected = recorded[f"out/{{number}}/{{name}}"]
            assert np.asarray(x).shape == expected.shape and np.asarray(x).dtype == expected.dtype, name
            if name == "action" and expected.dtype.kind == "i":
                np.testing.assert_array_equal(x, expected)
            np.testing.assert_allclose(np.asarray(x, np.float64), expected, rtol=1e-5, atol=1e-5)

for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
{body}
    compare(folder, step, about)
    print(folder.name)
loaded = [name for name in {absent} if sys.modules.get(name) is not None]
assert not loaded, loaded
"""
BY_NUMPY = """
    module = {"__name__": "policy"}
    exec((folder / "policy.py").read_text(), module)
    step, about = (lambda given: module["step"](**given)), module["ABOUT"]
"""
BY_JAX = """
    from jax import export
    blob = (folder / "policy.stablehlo").read_bytes()
    about = json.loads((folder / "policy.json").read_text())
    import hashlib
    assert hashlib.sha256(blob).hexdigest() == about["sha256"]
    step = export.deserialize(bytearray(blob)).call
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export each policy to a folder with its files and the expected outputs of JAX."""
    root = tmp_path_factory.mktemp("policies")
    for name in POLICIES:
        policy = stored(name, root / name)
        recorded = recorded_steps(policy.policy, num_rows=7, num_steps=3)
        export_policy(policy, ["numpy", "jax"], root / name)
        steps = enumerate(zip(recorded.inputs, recorded.outputs, strict=True))
        arrays: dict[str, Any] = {}
        for number, (inputs, outputs) in steps:
            arrays |= {f"in/{number}/{key}": x for key, x in inputs.items()}
            arrays |= {f"out/{number}/{key}": x for key, x in outputs.items()}
        np.savez(root / name / "recorded.npz", **arrays)
    return root


@pytest.mark.parametrize(
    ("absent", "body"),
    [(("evorl", "jax", "jaxlib", "flax"), BY_NUMPY), (("evorl", "flax"), BY_JAX)],
    ids=["numpy", "jax"],
)
def test_a_process_without_evorl_does_the_same(absent: tuple[str, ...], body: str, written: Path) -> None:
    program = WITHOUT_EVORL.format(absent=absent, body=body)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(written)],
        capture_output=True,
        text=True,
        check=False,
        cwd=written,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
def test_onnx_does_the_same(name: str, tmp_path: Path) -> None:
    need("onnxruntime", "onnx")
    ((path, parity),) = export_policy(stored(name, tmp_path), ["onnx"], tmp_path / "policy.onnx")
    assert path == tmp_path / "policy.onnx"
    assert parity is not None
    assert parity.num_observations == 1000
    assert parity.is_close


def test_a_file_says_what_it_is_and_how_far_it_is(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = stored("r2d2", tmp_path)
    (file,) = export_policy(policy, ["jax"])
    assert file.path == tmp_path / "export" / "policy.stablehlo"
    output = capsys.readouterr().out
    assert output.startswith(f"jax: {file.path}, ")
    assert output.endswith("over 1,000 observations, 1,000 of 1,000 actions the same\n")
    described = json.loads((tmp_path / "export" / "policy.json").read_text())
    assert described["platforms"] == ["cpu", "cuda", "tpu"]
    assert {name: described[name] for name in about(policy)} == json.loads(json.dumps(about(policy)))
    assert described["memory"] == {"memory_recurrent_hidden": "next_memory_recurrent_hidden"}


@pytest.mark.parametrize("form", ["jax", "numpy", "onnx", "html"])
def test_a_policy_in_bfloat16_is_exact_or_in_float32(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if form == "onnx":
        need("onnxruntime", "onnx")
    policy = stored_in_bfloat16(tmp_path)
    ((_, parity),) = export_policy(policy, [form])
    message = capsys.readouterr().out
    if parity is not None:  # html without Node.js is not checked
        assert parity.is_close
        assert form != "jax" or parity.difference == 0.0
    assert ("computed in float32" in message) == (form != "jax")
    assert policy.in_float32 is not None
    difference = compared(policy.policy, policy.in_float32.runnable(), recorded_steps(policy.policy))
    assert 1e-5 < difference.difference < 0.02
    assert (f"{difference.difference:.1e} over 1,000 observations" in message) == (form != "jax")


@pytest.mark.parametrize("form", ["numpy", "jax", "html"])
@pytest.mark.parametrize("failure", [None, ParityError("cannot run"), ValueError("invalid"), KeyboardInterrupt()])
def test_a_file_that_computes_something_else_replaces_no_other_file(
    form: str, failure: BaseException | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = stored("dqn", tmp_path)
    export_policy(policy, [form])
    files = {path: path.read_bytes() for path in (tmp_path / "export").iterdir()}

    def check(*args: Any) -> Parity:
        if failure is not None:
            raise failure
        return Parity(1000, 1e-3, 1000)

    monkeypatch.setattr(artifacts, "_checked", check)
    expected = ("differs from JAX", "1.0e-03", "not written") if failure is None else (str(failure),)
    for folder in (tmp_path / "export", tmp_path / "new"):
        with raises_naming(ParityError if failure is None else type(failure), *expected):
            export_policy(dataclasses.replace(policy, timesteps=65), [form], folder)
    assert {path: path.read_bytes() for path in (tmp_path / "export").iterdir()} == files
    assert not (tmp_path / "new").exists()


def test_an_export_writes_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "policy.json").symlink_to(tmp_path / "target")
    with raises_naming(RunFolderError, "policy.json", "symbolic link"):
        export_policy(stored("dqn", tmp_path), ["jax"])
    assert [path.name for path in tmp_path.rglob("*")] == ["export", "policy.json"]


def test_an_existing_folder_may_have_a_suffix(tmp_path: Path) -> None:
    folder = tmp_path / "policies.v2"
    folder.mkdir()
    ((path, _),) = export_policy(stored("dqn", tmp_path), ["numpy"], folder)
    assert path == folder / "policy.py"
    assert path.is_file()


def test_a_description_does_not_replace_its_file(tmp_path: Path) -> None:
    with raises_naming(ValueError, "policy.json", ".stablehlo"):
        export_policy(stored("dqn", tmp_path), ["jax"], tmp_path / "policy.json")
    assert not list(tmp_path.iterdir())
    (file,) = export_policy(stored("dqn", tmp_path), ["numpy"], tmp_path / "policy.json")
    assert file.path.read_text().startswith('"""')
