"""Unknown config keys: suggestions by the agents that define them, by synonyms, or by similar keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.cli.composition import compose_config
from evorl.cli.config_tree import config_folder
from evorl.cli.errors import explained_errors
from tests.support.errors import assert_names


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["agent=ppo", "batch_size=64"], ("config key 'batch_size'", "'num_minibatches'")),
        (
            ["agent=dqn", "target_kl=0.1"],
            ("config key 'target_kl'", "other agents (ppo)"),
        ),
        (
            ["agent=sac", "env=pendulum", "target_update_interval=2"],
            ("other agents (dqn, r2d2, rainbow).", "evorl"),
        ),
        (
            ["agent=ppo", "tau=0.1"],
            ("other agents (bro, crossq, ddpg, discor, dqn, fast_td3, flash_sac,",),
        ),
        (
            ["agent=td3", "env=pendulum", "agent.noise={name: my_parts:Noise, width: 3}"],
            ("'+agent.noise={name: my_parts:Noise, width: 3}'",),
        ),
        (["agent=qd/map_elites", "variation.name=parts:Mine"], ("'variation.name'", "plus: +variation.name=")),
        (["agent=ec/ga", "optimizer.mutation.name=parts:Mine"], ("plus: +optimizer.mutation.name=",)),
        (["agent=ppo", "optimizer.lr=1e-3"], ("config key 'optimizer.lr'", "'optimizer.learning_rate'")),
        (
            ["agent=ppo", "optimizer={lr: 1e-3}"],
            ("config key 'optimizer.lr'", "'optimizer.learning_rate'"),
        ),
        (["agent=ppo", "agent.network={torsos: [3]}"], ("'agent.network.torsos'", "'agent.network.torso'")),
        (["agent=ppo", "gamma=0.9"], ("config key 'gamma'", "'discount'")),
        (["agent=erl/erl", "env=pendulum", "tau=0.1"], ("config key 'tau'", "'learner.tau'")),
        (["env=user", "env.factory=mine:Env", "env.friction=2"], ("key 'env.friction'", "plus: +env.friction=")),
        (["env=user", "env.factory=mine:Env", "env.max_episode_step=2"], ("'env.max_episode_steps'",)),
        (["algo=ppo"], ("config key 'algo'", "'agent'")),
        (["actors.count=2"], ("actors.count", "actors is null")),
        (["agent=ppo", "discount.start=0.9"], ("discount.start", "discount is 0.99", "discount='{start: ...}'")),
        (["replay.capacity=2"], ("config key 'replay.capacity'", "Available: seed, title, num_seeds,")),
    ],
)
def test_each_key_is_answered(
    arguments: list[str], parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["evorl", *arguments])
    with pytest.raises(SystemExit), explained_errors(config_folder()):
        compose_config(arguments)
    message = capsys.readouterr().err
    assert_names(message, *parts)
    assert "env.name" not in message  # for a wrong top-level key, only top-level keys are suggested


def test_only_the_name_of_a_class_is_added_with_a_plus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["agent=ppo", "evaluation.name=x"]
    monkeypatch.setattr("sys.argv", ["evorl", *arguments])
    with pytest.raises(SystemExit), explained_errors(config_folder()):
        compose_config(arguments)
    message = capsys.readouterr().err
    assert_names(message, "'evaluation.name'", "Available: evaluation.goals")
    assert "plus" not in message


def test_files_of_ones_own_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Suggestions include agents of a custom folder, also for a config that failed to compose."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/mine.yaml").write_text("# @package _global_\nworkflow: evorl.algorithms.sac.SACWorkflow\n")
    arguments = ["agent=mine", "env=pendulum", "optimizer=sgd"]
    monkeypatch.setattr("sys.argv", ["evorl", "--config-dir", str(tmp_path), *arguments])
    with pytest.raises(SystemExit), explained_errors(config_folder()):
        compose_config([f"hydra.searchpath=[file://{tmp_path}]", *arguments])
    assert_names(capsys.readouterr().err, "config key 'optimizer'", "'actor_optimizer'")
