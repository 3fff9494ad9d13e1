"""Settings with their descriptions, from classes and from the comments of files."""

from __future__ import annotations

import pytest
import yaml

from evorl.cli.config_tree import config_folder
from evorl.cli.settings import as_yaml, commented_settings, commented_yaml, workflow_settings
from tests.support.doc_pages import optimizer_settings

TEXT = """\
# @package _global_
defaults:
  - x
hydra:
  run: 1 # no setting of ours
steps: 10 # how many
network: # what it is made of
  torso: [64, 64] # layers
  - 3
  activation: relu
last: {a: 1} # of all
"""


def test_comments_of_a_file() -> None:
    assert list(commented_settings(TEXT)) == [
        ("steps", "10", "how many"),
        ("network", "", "what it is made of"),
        ("network.torso", "[64, 64]", "layers"),
        ("network.activation", "relu", ""),
        ("last", "{a: 1}", "of all"),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e6, "1000000"),
        (0.5, "0.5"),
        (1e-3, "0.001"),
        (None, "null"),
        ([64, 64], "[64, 64]"),
        ("x", "x"),
        (True, "true"),
    ],
)
def test_values_on_one_line(value: object, text: str) -> None:
    assert as_yaml(value) == text


def test_a_part_that_is_an_agent_follows_with_its_own_settings() -> None:
    inner = {"workflow": "evorl.algorithms.ppo.PPOWorkflow", "num_epochs": 3}
    config = {"workflow": "evorl.algorithms.pbt.PBTWorkflow", "pop_size": 3, "inner": inner}
    settings = {name: (value, text) for name, value, text in workflow_settings(config)}
    assert settings["pop_size"][0] == 3
    assert settings["inner"][1] == "a complete algorithm, with its settings"
    assert settings["inner.num_epochs"][0] == 3
    assert settings["inner.agent.clip_epsilon"][1] != ""
    assert list(settings).index("inner") < list(settings).index("inner.num_epochs")


def test_an_optimizer_of_a_population() -> None:
    settings = {name: value for name, value, _ in optimizer_settings({"optimizer": {"name": "ga", "pop_size": 4}})}
    assert settings["optimizer.pop_size"] == 4
    assert len(settings) > 5


def test_yaml_with_comments_reads_as_what_it_was() -> None:
    config = {"workflow": "evorl.algorithms.ppo.PPOWorkflow", "seed": 3, "agent": {"clip_epsilon": 0.1, "empty": {}}}
    text = commented_yaml(config, config_folder())
    assert yaml.safe_load(text) == config
    (line,) = (line for line in text.splitlines() if "clip_epsilon" in line)
    assert line.startswith("  clip_epsilon: 0.1  # ")
