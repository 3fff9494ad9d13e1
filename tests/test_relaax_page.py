"""The page about RELAAX: its names exist, its settings are valid, and no feature is missing."""

from __future__ import annotations

import functools
import re

import pytest
import yaml
from hydra import compose

from evorl.assembly import workflow_from_config
from evorl.cli.command_table import COMMANDS
from evorl.cli.commands import help_of
from evorl.cli.composition import initialize_configs
from evorl.networks.torsos import build_torso
from tests.support.doc_pages import ROOT, settings

ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs/guide/relaax.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ")
]
SPANS = sorted({span for row in ROWS for span in re.findall(r"`([^`]+)`", row[-1])})
SETTINGS = [span for span in SPANS if re.match(r"\+?[a-z_.]+=", span) and not span.startswith("serve.")]
NAMES = sorted({name for row in ROWS if len(row) == 2 for name in re.findall(r"`([a-z_]+[a-z_.]*)`", row[1])})
COMMAND_LINES = [span for span in SPANS if span.startswith("evorl ") and "<" not in span]
LAYERS = [span for span in SPANS if span.startswith("{")]
ALGORITHMS = ("ppo", "a2c", "dqn", "ddpg", "trpo", "reinforce")
WITH_MORE = {"parameters.": "parameters=server", "agent.absolute_errors=": "agent.huber_delta=null"}
PICTURES = [
    "env=remote",
    "env.obs_space={shape: [84, 84, 4], dtype: uint8, low: 0, high: 255}",
    "env.action_space={n: 3}",
]
NO_SUCH_ROWS = {41, 42, 43}


def is_taken(setting: str) -> bool:
    """Return True if a training run of one of the algorithms can be built with the setting."""
    with initialize_configs():
        for agent in ALGORITHMS:
            env = "pendulum" if "ddpg" in (agent, setting.removeprefix("agent=")) else "cartpole"
            more = [word for start, word in WITH_MORE.items() if setting.startswith(start)]
            agents = [] if setting.startswith("agent=") else [f"agent={agent}"]
            try:
                sees = (
                    PICTURES
                    if setting in ("agent.network.torso=classic", "agent.network.torso=universe")
                    else [f"env={env}"]
                )
                workflow_from_config(compose("config", [*agents, *sees, *more, setting]))
            except Exception:  # of any kind: another algorithm may accept it
                continue
            return True
    return False


@functools.cache
def known_names() -> frozenset[str]:
    """Return the names of training settings of all algorithms."""
    files = [ROOT / "configs/config.yaml", *(ROOT / f"configs/agent/{agent}.yaml" for agent in ALGORITHMS)]
    return frozenset(name for file in files for name, _, _ in settings(file))


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_are_taken(setting: str) -> None:
    assert is_taken(setting), f"no algorithm takes {setting}"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "flatten"])
def test_names_are_those_of_settings(name: str) -> None:
    assert name in known_names() or is_taken(f"{name}=2"), f"there is no setting {name}"


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_commands_and_their_options_are_there(line: str) -> None:
    _, command, *words = line.split()
    assert command in COMMANDS
    for name in re.findall(r"(\w+)=", " ".join(words)):
        assert re.search(rf"\b{name}=|^  {name}\b|\[{name}=", help_of(command), re.MULTILINE) or name == "loss", line


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_can_be_built(layer: str) -> None:
    layers = [yaml.safe_load(layer)]
    build_torso({"torso": [*layers, "flatten"] if "conv" in layer else layers, "activation": "relu"})


def test_every_capability_is_answered() -> None:
    rows: set[int] = set()
    for row in ROWS:
        for first, last in re.findall(r"L(\d+)[a-d]?(?:-L(\d+))?", row[0]) if len(row) == 3 else ():
            rows |= set(range(int(first), int(last or first) + 1))
    assert rows == set(range(1, 49)) - NO_SUCH_ROWS


def test_it_bites() -> None:
    assert not is_taken("agent.nothing=1")
    assert not is_taken("torso=universe")
    assert min(len(SETTINGS), len(NAMES)) > 25
