"""Exports a policy to files, and compares the outputs of each file with the outputs of the policy."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
import types
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import export

from evorl.distribution import installed_version
from evorl.export import FORMATS
from evorl.export.graph import Graph, NoRule
from evorl.export.parity import Parity, ParityError, Recorded, compared, recorded_steps
from evorl.export.portable_policy import PortablePolicy
from evorl.export.stored_policy import StoredPolicy
from evorl.export.trace import traced_graph
from evorl.runs.files import make_folder, refuse_link, sibling, writing_to


class ExportedFile(NamedTuple):
    """An exported file.

    Attributes:
        path: path of the file.
        parity: difference between the outputs of file and policy; ``None`` for HTML if Node.js is not installed.
    """

    path: Path
    parity: Parity | None


def export_policy(stored: StoredPolicy, formats: Sequence[str], to: str | Path | None = None) -> list[ExportedFile]:
    """Export to folder ``to`` (default: the run's ``export``) or to a file.

    Raises:
        ValueError: ``to`` is a .json file, but the only format is jax, whose file has the suffix .stablehlo.
        ParityError: the outputs of a file differ from the policy's; this file is not written, nor are those after it.
    """
    folder = stored.folder / "export" if to is None else Path(to)
    paths = {name: folder / f"policy.{FORMATS[name]}" for name in formats}
    if to is not None and len(formats) == 1 and folder.suffix and not folder.is_dir():
        paths = {formats[0]: folder}
        if formats == ["jax"] and folder.suffix == ".json":  # the suffix of the description next to the file
            raise ValueError(f"to={to} is a .json file, but a policy in the format jax needs the suffix .stablehlo.")
    sources = {name: _source(stored, name) for name in formats}
    policies = {id(source.policy): source.policy for source in sources.values()}
    recorded = {key: recorded_steps(policy) for key, policy in policies.items()}
    written = []
    for name, path in paths.items():
        source = sources[name]
        content, extra = _content(name, source)
        parity = _checked_content(name, content, source, recorded[id(source.policy)])
        _write({path: content} | {sibling(path, suffix, f".{FORMATS[name]}"): data for suffix, data in extra.items()})
        print(f"{name}: {path}, {len(content):,} bytes, {parity.describe() if parity else _UNCHECKED}")
        written.append(ExportedFile(path, parity))
    widened = [name for name, source in sources.items() if source is not stored]
    if widened and stored.in_float32 is not None:
        difference = compared(stored.policy, stored.in_float32.runnable(), recorded_steps(stored.policy))
        print(f"{', '.join(widened)}: computed in float32, which {difference.describe('the policy in bfloat16')}")
    return written


def html_page(stored: StoredPolicy) -> tuple[bytes, str]:
    """Return the HTML page of a policy, and a text: the page's difference from the policy, or why it was not checked.

    Raises:
        ValueError: the page does not support an operation of the policy.
        ParityError: the outputs of the page differ from the policy's, or Node.js cannot run the page.
    """
    source = _source(stored, "html")
    content, _ = _content("html", source)
    parity = _checked_content("html", content, source, recorded_steps(source.policy))
    return content, parity.describe() if parity else _UNCHECKED


def _source(stored: StoredPolicy, format_name: str) -> StoredPolicy:
    """Return the policy to write in a format: computed in float32, unless the format supports bfloat16."""
    if format_name == "jax" or stored.in_float32 is None:
        return stored
    return dataclasses.replace(stored, policy=stored.in_float32)


def policy_graph(policy: PortablePolicy) -> Graph:
    """Return the operations of a policy, for any batch size.

    Raises:
        NoRule: an operation is not supported, or merges the batch axis with another; or a port is in bfloat16.
    """
    if narrow := [port.name for port in (*policy.inputs, *policy.outputs) if port.dtype.name == "bfloat16"]:
        raise NoRule(f"only format=jax supports bfloat16, the dtype of {', '.join(narrow)}.")
    (rows,) = export.symbolic_shape("rows")
    specs = [jax.ShapeDtypeStruct((rows, *port.shape), port.dtype) for port in policy.inputs]
    names = [port.name for port in policy.inputs]

    def step(*arrays: jax.Array) -> list[jax.Array]:
        outputs = policy.rows(dict(zip(names, arrays, strict=True)))
        return [outputs[port.name] for port in policy.outputs]

    return traced_graph(step, specs, rows)


def about(stored: StoredPolicy) -> dict[str, Any]:
    """Return the metadata stored with every file, as JSON data: inputs, outputs, spaces, run and package versions."""
    versions = {"evorl": installed_version()} | {name: metadata.version(name) for name in ("jax", "numpy")}
    return {
        "format": 1,
        **stored.policy.describe(),
        "env": stored.title,
        "algorithm": stored.algorithm,
        "run": stored.folder.name,
        "timesteps": stored.timesteps,
        "versions": versions,
    }


def _write(contents: Mapping[Path, bytes]) -> None:
    """Write files to one folder; if one cannot be written, the folder keeps its old files."""
    folder = next(iter(contents)).parent
    with writing_to(folder):
        make_folder(folder)
        with tempfile.TemporaryDirectory(prefix=".evorl-", dir=folder) as new:
            for path, content in contents.items():
                refuse_link(path)
                (Path(new) / path.name).write_bytes(content)
            for path in contents:
                (Path(new) / path.name).replace(path)


def _content(name: str, stored: StoredPolicy) -> tuple[bytes, dict[str, bytes]]:
    """Return the content of a file in a format, and the contents of the files next to it, by suffix."""
    if name == "jax":
        from evorl.export.stablehlo_file import PLATFORMS, stablehlo_bytes

        content = stablehlo_bytes(stored.policy)
        description = about(stored) | {"platforms": list(PLATFORMS), "sha256": hashlib.sha256(content).hexdigest()}
        return content, {".json": (json.dumps(description, indent=1) + "\n").encode()}
    if name == "html":
        from evorl.export.html_file import html_text

        return html_text(stored.policy, stored.env, about(stored), _title(stored)).encode(), {}
    operands = (stored.policy, policy_graph(stored.policy), about(stored), _title(stored))
    if name == "onnx":
        from evorl.export.onnx_file import onnx_bytes

        return onnx_bytes(*operands), {}
    from evorl.export.numpy_file import numpy_text

    return numpy_text(*operands).encode(), {}


def _title(stored: StoredPolicy) -> str:
    run = f"after {stored.timesteps:,} steps (run {stored.folder.name})"
    return f"The policy of {stored.algorithm} in {stored.title}, {run}."


def _checked_content(name: str, content: bytes, stored: StoredPolicy, recorded: Recorded) -> Parity | None:
    with tempfile.TemporaryDirectory(prefix="evorl-") as folder:
        path = Path(folder) / f"policy.{FORMATS[name]}"
        path.write_bytes(content)
        parity = _checked(name, path, stored.policy, recorded)
    if parity is not None and not parity.is_close:
        reason = f"{parity.describe()}, more than rounding errors explain"
        raise ParityError(f"the {name} file is not written, because it {reason}. Use another format.")
    return parity


def _checked(name: str, path: Path, policy: PortablePolicy, recorded: Recorded) -> Parity | None:
    """Run the file and return its difference from the policy; ``None`` for HTML if Node.js is not installed."""
    if name == "onnx":
        from evorl.export.onnx_file import OnnxSession

        return compared(policy, OnnxSession(path), recorded)
    if name == "jax":
        call: Any = export.deserialize(bytearray(path.read_bytes())).call
        return compared(policy, call, recorded)
    if name == "numpy":
        module = types.ModuleType("policy")
        exec(compile(path.read_text(encoding="utf-8"), path, "exec"), vars(module))
        return compared(policy, lambda inputs: module.step(**inputs), recorded)
    from evorl.export.html_file import checked_page

    return checked_page(path, policy, recorded)


_UNCHECKED = "not checked, because Node.js (the command node) is not installed"
