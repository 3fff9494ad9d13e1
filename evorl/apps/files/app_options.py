"""What ``app.yaml`` says, for a simulator: ``options.get("environment/name", "CartPole-v1")``.

``evorl run`` hands it over in the environment variable ``EVORL_APP``. Started by hand, as ``python environment/...py``,
it reads ``app.yaml`` of the folder it is started in, for which Python needs the package pyyaml.
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
    """The settings of an app.

    Args:
        values: as ``app.yaml`` has them; beside these ``number``, ``exploit`` and ``show_ui`` of this simulator.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a path such as ``environment/name``; ``default`` where there is none, or it is null."""
        value: Any = self.values
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, Mapping) else None
        return default if value is None else value

    @property
    def seed(self) -> int | None:
        """``environment/seed`` plus the number of this simulator, so that no two play the same; ``None`` for chance."""
        seed = self.get("environment/seed")
        return None if seed is None else int(seed) + int(self.get("number", 0))

    def connection(self) -> dict[str, Any]:
        """What ``TrainingBase`` of the client takes: the server to ask, and how many episodes to play."""
        host, _, port = str(self.get("server/bind", "127.0.0.1:7001")).rpartition(":")
        agent = AgentProxy((host.strip("[]"), int(port)), self.get("server/token"))
        length = {
            name: self.get(f"run/{name}", usual) for name, usual in (("max_episodes", 1), ("infinite_run", False))
        }
        return {"agent": agent, "options": {**self.values, "environment": {**self.get("environment", {}), **length}}}


def read_options(arguments: Sequence[str] | None = None) -> Options:
    """What ``evorl run`` hands over, or what ``app.yaml`` says; and the flags ``--exploit`` and ``--show-ui``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    flags = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if name not in _FLAGS or text.lower() not in ("", "true", "false"):
            stop(f"{argument!r} is no flag of this script: {', '.join(_FLAGS)}")
        flags[_FLAGS[name]] = not equals or text.lower() == "true"
    handed = os.environ.get(VARIABLE)
    return Options({**(json.loads(handed) if handed else _from_file(Path("app.yaml"))), **flags})


def _from_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        stop("there is no app.yaml here: start this in the folder of the app, or by evorl run")
    try:
        import yaml
    except ImportError:
        stop("to be started by hand this needs the package pyyaml: pip install pyyaml")

    class Loader(yaml.SafeLoader):
        """Reads 1e-3 as a number, as evorl does."""

    exponent = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    try:
        values = yaml.load(path.read_bytes().decode("utf-8-sig"), Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        stop(f"app.yaml cannot be read: {' '.join(str(error).split())}")
    if not isinstance(values, dict):
        stop("app.yaml must be a mapping from settings to values")
    return values


def stop(sentence: str) -> NoReturn:
    """End this simulator with a sentence and status 1."""
    print(f"Error: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(1)


def action_number(action: Any, count: int) -> int:
    """Which of ``count`` actions is meant, 0 to ``count - 1``.

    An agent of continuous actions, ``action_space: {shape: [1], low: -1, high: 1}``, chooses by equal parts of [-1, 1].
    """
    if isinstance(action, int):
        return action
    (value,) = action if hasattr(action, "__len__") else (action,)
    return min(count - 1, max(0, int((float(value) + 1.0) / 2.0 * count)))
