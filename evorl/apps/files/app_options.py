"""Options of a simulator, from ``app.yaml``: ``options.get("environment/name", "CartPole-v1")``.

``evorl run`` passes them in the environment variable ``EVORL_APP``. A simulator started by hand, as
``python environment/...py``, reads ``app.yaml`` from the current folder, which requires the package pyyaml.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from evorl.serving.client import AgentProxy

VARIABLE = "EVORL_APP"
_FLAGS = {"--exploit": "exploit", "--show-ui": "show_ui"}


class Options:
    """Settings of an app, as its simulator reads them.

    Args:
        values: content of ``app.yaml``, plus ``number``, ``exploit`` and ``show_ui`` of this simulator.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value at a path such as ``environment/name``; ``default`` if it is missing or null."""
        value: Any = self.values
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, Mapping) else None
        return default if value is None else value

    @property
    def seed(self) -> int | None:
        """``environment/seed`` plus this simulator's number, so that simulators differ; ``None`` without a seed."""
        seed = self.get("environment/seed")
        return None if seed is None else int(seed) + int(self.get("number", 0))

    def connection(self) -> dict[str, Any]:
        """Return the arguments of ``TrainingBase``: ``agent``, a proxy of the training server, and ``options``."""
        host, _, port = str(self._of_server("bind", "127.0.0.1:7001")).rpartition(":")
        agent = AgentProxy((host.strip("[]"), int(port)), self._of_server("token"))
        length = {
            name: self.get(f"run/{name}", default) for name, default in (("max_episodes", 1), ("infinite_run", False))
        }
        return {"agent": agent, "options": {**self.values, "environment": {**self.get("environment", {}), **length}}}

    def _of_server(self, name: str, default: Any = None) -> Any:
        """Return an entry of ``server`` in app.yaml, or the value of the environment variable that it names."""
        return os.environ.get(self.get(f"server/{name}_by_env_var", "")) or self.get(f"server/{name}", default)


def read_options(arguments: Sequence[str] | None = None) -> Options:
    """Read the options from ``EVORL_APP`` or, if unset, ``app.yaml``; ``--exploit`` and ``--show-ui`` override them."""
    arguments = sys.argv[1:] if arguments is None else arguments
    flags = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if name not in _FLAGS or text.lower() not in ("", "true", "false"):
            stop(f"{argument!r} is invalid; options: {', '.join(_FLAGS)}, each alone or with =true or =false")
        flags[_FLAGS[name]] = not equals or text.lower() == "true"
    passed = os.environ.get(VARIABLE)
    return Options({**(json.loads(passed) if passed else _from_file(Path("app.yaml"))), **flags})


def _from_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        stop("there is no app.yaml here: run this script in the app folder, or with evorl run")
    try:
        import yaml
    except ImportError:
        stop("without evorl run, this script needs the package pyyaml: pip install pyyaml")

    class Loader(yaml.SafeLoader):
        """YAML loader that reads 1e-3 as a number, as evorl does."""

    exponent = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    try:
        values = yaml.load(path.read_bytes().decode("utf-8-sig"), Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        stop(f"app.yaml cannot be read: {' '.join(str(error).split())}")
    if not isinstance(values, dict):
        stop(f"app.yaml must be a mapping from settings to values, got {values!r:.80}")
    return values


def stop(message: str) -> NoReturn:
    """Print an error message and exit with status 1."""
    print(f"Error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(1)


def action_number(action: Any, count: int) -> int:
    """Return the index, 0 to ``count - 1``, of a discrete action.

    A continuous action, from ``action_space: {shape: [1], low: -1, high: 1}``, selects one of ``count`` equal
    intervals of [-1, 1].
    """
    if isinstance(action, int):
        return action
    (value,) = action if hasattr(action, "__len__") else (action,)
    return min(count - 1, max(0, int((float(value) + 1.0) / 2.0 * count)))
