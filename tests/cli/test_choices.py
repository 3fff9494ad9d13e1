"""What a run is called, and where its settings are from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose
from hydra.core.hydra_config import HydraConfig

from evorl.cli.choices import choices, folder_of_runs, origin_of_settings, title_of
from evorl.cli.composition import initialize_configs
from evorl.runs.spec import RunSpec

PPO = {"workflow": "evorl.algorithms.ppo.PPOWorkflow", "env": {"library": "gymnax", "name": "CartPole-v1"}, "seed": 0}


@pytest.mark.parametrize(
    ("changes", "chosen", "title"),
    [
        ({"num_seeds": 1}, {"agent": "ppo"}, "PPO on CartPole-v1, seed 0"),
        ({"num_seeds": 4, "seed": 2}, {}, "PPO on CartPole-v1, seeds 2 to 5"),
        ({"workflow": "evorl.algorithms.td3.TD3Workflow"}, {"agent": "ddpg"}, "ddpg on CartPole-v1, seed 0"),
        ({"workflow": "a.MAPElitesWorkflow"}, {"agent": "qd/map_elites"}, "MAPElites on CartPole-v1, seed 0"),
        ({"env": {"name": None, "factory": "mine:make"}}, {"agent": "ppo"}, "PPO on mine:make, seed 0"),
        ({"title": "wide networks"}, {"agent": "ppo"}, "wide networks"),
    ],
)
def test_titles_are_words(changes: dict, chosen: dict, title: str) -> None:
    assert title_of(RunSpec.from_config(PPO | changes), chosen) == title


def test_runs_of_a_pair_are_in_one_folder() -> None:
    assert folder_of_runs("runs", {"agent": "meta/pbt", "env": "brax/hopper"}) == Path("runs/meta-pbt-brax-hopper")
    assert folder_of_runs("runs", {}) == Path("runs/run-env")


def test_nobody_chose_in_a_notebook() -> None:
    assert origin_of_settings({}) is None


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["env=gymnax/CartPole-v1"], "Tuned settings: ppo/cartpole."),
        (["agent=meta/pbt", "env=pendulum"], "Tuned settings: ppo/pendulum."),
        (["agent=reinforce", "env=hopper"], "General defaults: there are no settings tuned for reinforce in hopper."),
    ],
)
def test_settings_are_tuned_or_general(overrides: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with initialize_configs():
        composed = compose("config", overrides=overrides, return_hydra_config=True)
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    HydraConfig.instance().set_config(composed)
    assert origin_of_settings(choices()) == said
