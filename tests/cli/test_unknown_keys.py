"""Unknown config keys: suggestions by the agents that define them, by synonyms, or by similar keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.cli.composition import compose_config
from evorl.cli.config_tree import config_folder
from evorl.cli.errors import explained_errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["agent=ppo", "batch_size=64"], "There is no config key 'batch_size'. Did you mean 'num_minibatches'?"),
        (
            ["agent=dqn", "target_kl=0.1"],
            "There is no config key 'target_kl' here: it is a setting of other agents (ppo)",
        ),
        (
            ["agent=sac", "env=pendulum", "target_update_interval=2"],
            "a setting of other agents (dqn, r2d2, rainbow). evorl",
        ),
        (
            ["agent=ppo", "tau=0.1"],
            "it is a setting of other agents (crossq, ddpg, discor, dqn, fast_td3, iql, r2d2, rainb",
        ),
        (
            ["agent=td3", "env=pendulum", "agent.noise={name: my_parts:Noise, width: 3}"],
            "'+agent.noise={name: my_parts:Noise, width: 3}'",
        ),
        (["agent=ppo", "optimizer.lr=1e-3"], "no config key 'optimizer.lr'. Did you mean 'optimizer.learning_rate'?"),
        (
            ["agent=ppo", "optimizer={lr: 1e-3}"],
            "no config key 'optimizer.lr'. Did you mean 'optimizer.learning_rate'?",
        ),
        (["agent=ppo", "agent.network={torsos: [3]}"], "'agent.network.torsos'. Did you mean 'agent.network.torso'?"),
        (["agent=ppo", "gamma=0.9"], "There is no config key 'gamma'. Did you mean 'discount'?\n"),
        (["agent=erl/erl", "env=pendulum", "tau=0.1"], "There is no config key 'tau'. Did you mean 'learner.tau'?"),
        (["algo=ppo"], "There is no config key 'algo'. Did you mean 'agent'?"),
        (["actors.count=2"], "There is no actors.count to set, since actors is null. Give actors as a whole, as in "),
        (["replay.capacity=2"], "There is no config key 'replay.capacity'. Available: seed, title, num_seeds, "),
    ],
)
def test_each_key_is_answered(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["evorl", *arguments])
    with pytest.raises(SystemExit), explained_errors(config_folder()):
        compose_config(arguments)
    told = capsys.readouterr().err
    assert said in told
    assert "env.name" not in told  # of a wrong key at the top only keys at the top are told


def test_files_of_ones_own_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error of a choice that is not among the defaults has no config with it: it is composed again."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/mine.yaml").write_text("# @package _global_\nworkflow: evorl.algorithms.sac.SACWorkflow\n")
    arguments = ["agent=mine", "env=pendulum", "optimizer=sgd"]
    monkeypatch.setattr("sys.argv", ["evorl", "--config-dir", str(tmp_path), *arguments])
    with pytest.raises(SystemExit), explained_errors(config_folder()):
        compose_config([f"hydra.searchpath=[file://{tmp_path}]", *arguments])
    assert "There is no config key 'optimizer'. Did you mean 'actor_optimizer'?" in capsys.readouterr().err
