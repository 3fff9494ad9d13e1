"""Loads policies from the ONNX and StableHLO files of ``evorl export``, without running Python code from them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.config.command_lines import user_path
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace, leaf_spaces, leaf_values
from evorl.envs.space_bounds import check_size
from evorl.export import FORMATS
from evorl.export.portable_policy import Port, PortablePolicy
from evorl.runs.files import RunFolderError

MAX_BYTES = 2**30  # size limit of a file
# Custom calls that occur in programs exported by evorl; other calls could run arbitrary native code in this process.
KNOWN_CALLS = {"shape_assertion", "Sharding", "mhlo.erf", "mhlo.topk", "chlo.erf"}
_CALLS = re.compile(r'custom_call\s+@"?([\w.]+)')


@dataclasses.dataclass(frozen=True)
class ExportedPolicy:
    """The policy of an exported file.

    Attributes:
        policy: the policy; its method ``runnable`` returns the program of the file.
        path: path of the file.
        title: name of the environment.
        algorithm: name of the algorithm that trained the policy.
        timesteps: environment steps trained, per seed.
        checkpoint, notices: always ``None`` and empty, because a file has no checkpoints.
    """

    policy: PortablePolicy
    path: Path
    title: str
    algorithm: str
    timesteps: int
    checkpoint: None = None
    notices: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return a one-line description of the policy."""
        repeat = self.policy.describe_repeat()
        return f"{self.algorithm} in {self.title} after {self.timesteps:,} steps{repeat}, {self.path}"


class ProgramPolicy(PortablePolicy):
    """Policy from a file: ``row`` takes a dict of inputs ``[B, ...]``, so call ``runnable`` instead of ``rows``."""

    def runnable(self) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
        """Return the file's program, which maps inputs ``[B, ...]`` by name to outputs ``[B, ...]`` by name."""
        return lambda inputs: dict(zip((port.name for port in self.outputs), self.row(inputs), strict=True))


def read_exported(path: str | Path, trust: bool = False) -> ExportedPolicy:
    """Load the policy from a file that ``evorl export`` wrote with ``format=onnx`` or ``format=jax``.

    Args:
        path: the file. A StableHLO file needs its description, ``<same name>.json``, in the same folder.
        trust: accept a StableHLO program with custom calls, which run native code, other than ``KNOWN_CALLS``.

    Raises:
        RunFolderError: the file or its description is missing, too large, corrupted, not trusted or of another format.
        ImportError: the file is an ONNX model, and onnxruntime is not installed.
    """
    path = user_path(path)
    readers = {f".{FORMATS['onnx']}": _read_onnx, f".{FORMATS['jax']}": _read_stablehlo}
    if path.suffix not in readers:
        raise RunFolderError(
            f"{path} cannot be served: expected a file from evorl export, ending in {' or '.join(readers)}. A .py file "
            "is a separate program, which evorl does not run."
        )
    if not path.is_file():
        raise RunFolderError(f"{path} does not exist: write it with evorl export run=<run> format=onnx (or jax).")
    if path.stat().st_size > MAX_BYTES:
        raise RunFolderError(f"{path} has {path.stat().st_size:,} bytes, expected at most {MAX_BYTES:,}.")
    about, call = readers[path.suffix](path, trust)
    try:
        policy = _policy_of(about, call)
        exported = ExportedPolicy(policy, path, str(about["env"]), str(about["algorithm"]), int(about["timesteps"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RunFolderError(f"{path} has an invalid description ({error!r}): export the policy again.") from error
    try:
        _check_step(policy)
    except Exception as error:  # raised by onnxruntime or jax
        raise RunFolderError(f"{path} does not match its description ({_in_one_line(error)}): re-export it.") from error
    return exported


def _check_step(policy: PortablePolicy) -> None:
    """Run one step on zeros, and compare the shapes of its inputs and outputs with the description and the spaces.

    Raises:
        ValueError: a shape differs, or random numbers are neither uniform nor normal.
        Exception: the program fails.
    """
    outputs = policy.runnable()({port.name: np.zeros((1, *port.shape), port.dtype) for port in policy.inputs})
    action = leaf_values(policy.action_space, policy.action_of(outputs))
    expected = {port.name: port.shape for port in policy.outputs}
    expected |= {f"observation {i}": space.shape for i, space in enumerate(leaf_spaces(policy.obs_space))}
    expected |= {f"action {i}": space.shape for i, space in enumerate(leaf_spaces(policy.action_space))}
    actual = {port.name: np.shape(outputs[port.name])[1:] for port in policy.outputs}
    actual |= {f"observation {i}": port.shape for i, port in enumerate(policy.observations)}
    actual |= {f"action {i}": np.shape(x)[1:] for i, x in enumerate(action)}
    if not set(policy.kinds) <= {"uniform", "normal"}:
        raise ValueError(f"random numbers must be uniform or normal, got {list(policy.kinds)}")
    for name in actual | expected:
        if actual.get(name) != expected.get(name):
            raise ValueError(f"{name} has shape {actual.get(name)}, expected {expected.get(name)}")


def _read_onnx(path: Path, trust: bool) -> tuple[dict[str, Any], Callable[..., Any]]:
    del trust  # unused: an ONNX model contains only ONNX operators
    from evorl.export.onnx_file import OnnxSession

    try:
        session = OnnxSession(path)
    except ImportError:
        raise
    except Exception as error:  # onnxruntime has its own exception types
        raise RunFolderError(f"{path} is not an ONNX model ({_in_one_line(error)}): export it again.") from error
    return _description(path, session.about), session


def _read_stablehlo(path: Path, trust: bool) -> tuple[dict[str, Any], Callable[..., Any]]:
    described = path.with_suffix(".json")
    if not described.is_file():
        raise RunFolderError(
            f"{described} is missing: copy the description of {path.name} to this folder, or export the policy again."
        )
    about, content = _description(path, described.read_bytes().decode(errors="replace")), path.read_bytes()
    if hashlib.sha256(content).hexdigest() != about.get("sha256"):
        raise RunFolderError(f"{path} does not match its description {described.name}: export the policy again.")
    try:
        exported = jax.export.deserialize(bytearray(content))
        calls = set(_CALLS.findall(exported.mlir_module())) - KNOWN_CALLS
    except Exception as error:  # raised by flatbuffers, MLIR or jax
        raise RunFolderError(f"{path} is unreadable ({_in_one_line(error)}): export it again with this JAX.") from error
    if calls and not trust:
        raise RunFolderError(
            f"{path} contains the custom calls {', '.join(sorted(calls))}, which run native code and do not occur in "
            "files that evorl exports: set trust=true only if you trust the author of the file."
        )
    return about, jax.jit(exported.call)


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _description(path: Path, text: str) -> dict[str, Any]:
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} has a description that is not JSON ({error}): export it again.") from error
    if not isinstance(about, dict):
        raise RunFolderError(f"{path} has a description that is not a JSON object: export it again.")
    return about


def _policy_of(about: Mapping[str, Any], call: Callable[..., Any]) -> PortablePolicy:
    memory, random = about["memory"], about["random"]
    inputs, outputs = ([_port(port) for port in about[name]] for name in ("inputs", "outputs"))

    def program(arrays: Mapping[str, Any]) -> tuple[Any, ...]:
        outputs_by_name = call({port.name: arrays[port.name] for port in inputs})
        return tuple(outputs_by_name[port.name] for port in outputs)

    return ProgramPolicy(
        observations=tuple(port for port in inputs if port.name not in memory and port.name not in random),
        memory=tuple(port for port in inputs if port.name in memory),
        draws=tuple(port for port in inputs if port.name in random),
        kinds=tuple(random[port.name] for port in inputs if port.name in random),
        results=tuple(port for port in outputs if port.name not in memory.values()),
        row=program,
        obs_space=space_of(about["observation_space"]),
        action_space=space_of(about["action_space"]),
        action_repeat=int(about["action_repeat"]),
    )


def _port(described: Mapping[str, Any]) -> Port:
    shape = tuple(int(size) for size in described["shape"][1:])
    check_size(shape)
    return Port(described["name"], shape, np.dtype(described["dtype"]))


def space_of(described: Mapping[str, Any]) -> Space:
    """Build a space from the result of ``described_space``; raise ``ValueError`` if its kind is unknown."""
    kind = described["kind"]
    if kind == "dict":
        return DictSpace({name: space_of(part) for name, part in described["spaces"].items()})
    if kind == "tuple":
        return TupleSpace([space_of(part) for part in described["spaces"]])
    if kind == "discrete":
        return Discrete(int(described["n"]), int(described.get("start", 0)))
    if kind == "multi_discrete":
        return MultiDiscrete(described["sizes"], described["start"], described["dtype"])
    if kind == "box":
        low, high = _bound(described["low"], -np.inf), _bound(described["high"], np.inf)
        return Box(low, high, described["shape"], described["dtype"])
    raise ValueError(f"a space of kind {kind!r} is unknown: expected dict, tuple, discrete, multi_discrete or box")


def _bound(described: Any, infinite: float) -> np.ndarray:
    numbers = np.asarray(described, object)
    return np.where(numbers == None, infinite, numbers).astype(np.float64)  # noqa: E711 - elementwise comparison
