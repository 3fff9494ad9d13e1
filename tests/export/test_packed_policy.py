"""The files of a packed policy: what evaluations read, and nothing of the author's machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

import evorl
from evorl.cli.evaluation import evaluate_run
from evorl.export import packed_policy
from evorl.export.graph import NoRule
from evorl.export.packed_policy import packed_files
from evorl.runs.folder import RunFolder
from evorl.runs.policy_archive import ABOUT, ARRAYS, CARD, CONFIG, METRICS, PAGE, REPORT, STRUCTURE, write_archive
from evorl.runs.replay_file import ReplayFileError, write_replay_file
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import StoredRun
from evorl.warm_start import warm_start
from tests.support.command_line import QUIET
from tests.support.errors import raises_naming
from tests.support.recorded_pendulum import TITLE, pendulum_columns
from tests.support.small_workflows import small


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_packed_policy_acts_and_scores_as_its_run(trained: RunFolder, tmp_path: Path) -> None:
    before = sorted(trained.path.rglob("*"))
    packed = packed_files(trained, license="mit")
    path = tmp_path / "policy.zip"
    write_archive(path, packed.files, packed.about)
    obs = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    assert np.array_equal(evorl.load_policy(path)(obs), evorl.load_policy(trained.path)(obs))
    packed_run, whole = (evaluate_run(RunSpec(stored=StoredRun(run=str(run))), []) for run in (path, trained.path))
    assert packed_run.mean_return == whole.mean_return
    np.testing.assert_equal(packed_run.metrics, whole.metrics)
    assert sorted(trained.path.rglob("*")) == before


def test_the_files_are_those_of_a_reader(trained: RunFolder) -> None:
    packed = packed_files(trained, license="mit")
    assert set(packed.files) >= {CARD, REPORT, METRICS, ABOUT, CONFIG, PAGE}
    assert packed.files[METRICS] == trained.metrics_csv.read_bytes()
    config = yaml.safe_load(packed.files[CONFIG])
    assert not {"runs_folder", "run", "trust", "compilation_cache", "recorders", "init_from"} & set(config)
    assert str(trained.path) not in b"".join(packed.files.values()).decode(errors="replace")
    paths = [leaf["path"] for leaf in json.loads(packed.files[STRUCTURE])["leaves"]]
    assert {path.partition("/")[0] for path in paths} == {"agent_state", "eval_key", "iterations"}
    assert "license: mit" in packed.files[CARD].decode()
    assert len(packed.files[ARRAYS]) < 10_000
    assert packed_files(trained, license="mit").files == packed.files


def test_a_policy_without_a_page_is_packed_without(trained: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_rule(*_: object) -> None:
        raise NoRule("sort has no rule.")

    monkeypatch.setattr(packed_policy, "html_page", without_rule)
    packed = packed_files(trained)
    assert PAGE not in packed.files
    assert "sort has no rule" in packed.files[CARD].decode()
    assert any("sort has no rule" in notice for notice in packed.notices)


def test_a_run_starts_from_a_packed_policy(trained: RunFolder, tmp_path: Path) -> None:
    packed = packed_files(trained)
    write_archive(tmp_path / "policy.zip", packed.files, packed.about)
    from evorl.runs.best_run import find_run

    folder = find_run(tmp_path / "policy.zip", "runs")
    workflow = small("ppo", "CartPole-v1", num_seeds=2, agent={"network": {"torso": [8]}})
    loaded, same = (warm_start(workflow, run, ["policy"]).arrays for run in (folder.path, trained.path))
    assert loaded.keys() == same.keys()
    assert all(np.array_equal(loaded[name], same[name]) for name in loaded)


def test_a_run_without_records_is_packed(trained: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "copy")
    shutil.copytree(trained.path, folder.path)
    for path in (folder.metrics_csv, folder.metrics_jsonl, folder.about):
        path.unlink()
    packed = packed_files(folder)
    assert not {METRICS, REPORT} & set(packed.files)
    assert "| commit | not stated |" in packed.files[CARD].decode()


def test_servers_and_folders_of_the_author_are_not_packed(trained: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "copy")
    shutil.copytree(trained.path, folder.path)
    config = yaml.safe_load(folder.config.read_text())
    config |= {
        "serve": {"bind": "127.0.0.1:7001", "token": "hunter2hunter2", "key": "/srv/anna/key.pem"},
        "recorders": {"wandb": {"project": "annas"}, "mlflow": {"uri": "http://anna:key@127.0.0.1:5000"}},
    }
    folder.config.write_text(yaml.safe_dump(config))
    for name, content in packed_files(folder, trust=True).files.items():
        assert not {word for word in (b"hunter2", b"anna") if word in content}, name


def test_a_policy_of_recorded_transitions_acts_without_them(
    train_once: Callable[..., RunFolder], tmp_path: Path
) -> None:
    dataset = tmp_path / "recorded"
    write_replay_file(dataset, pendulum_columns(), TITLE)
    run = train_once(
        *"agent=td3_bc env=pendulum num_envs=2 batch_size=4 replay_capacity=256 total_timesteps=2".split(),
        *"agent.network.torso=[4] agent.critic_network.torso=[4] eval_interval=0 log_interval=0 devices=1".split(),
        "env.max_episode_steps=10",
        f"replay.load={dataset}",
        *QUIET,
    )
    packed = packed_files(run)
    assert str(tmp_path) not in packed.files[CONFIG].decode()
    write_archive(tmp_path / "policy.zip", packed.files, packed.about)
    obs = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    expected = evorl.load_policy(run.path)(obs)
    dataset.with_suffix(".npz").unlink()
    dataset.with_suffix(".json").unlink()
    assert np.array_equal(evorl.load_policy(tmp_path / "policy.zip")(obs), expected)
    assert np.array_equal(evorl.load_policy(run.path)(obs), expected)
    assert packed_files(run).files[ARRAYS] == packed.files[ARRAYS]
    assert evorl.evaluate(run.path, eval_episodes=1).mean_return < 0
    resumed = shutil.copytree(run.path, tmp_path / "resumed")
    evorl.train(resume=resumed, total_timesteps=4)  # the checkpoint contains the transitions
    assert RunFolder(resumed).saved_at() is not None
    with raises_naming(ReplayFileError, "replay file", "recorded"):
        evorl.train("agent=td3_bc", "env=pendulum", f"replay.load={dataset}", runs_folder=tmp_path / "fresh")
    assert not (tmp_path / "fresh").exists()
