"""Sizes are rejected before environments are created; all runs of a sweep are built before the first one trains."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from evorl.assembly import workflow_from_config
from evorl.cli import main as cli
from evorl.cli.arguments import overrides_first
from evorl.cli.training import _refuse_other_comparison, _stored_run, refuse_with_resume
from evorl.config.gate import scope
from evorl.config.yaml_text import inline_yaml
from evorl.execution.restoration import restore
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import StoredRun
from evorl.runs.sweep_folder import SweepFolder
from evorl.training import preparation
from evorl.training.preparation import refuse_excessive_sizes, warm_start_from
from evorl.workflows.workflow import Workflow
from tests.support.command_line import SMALL
from tests.support.config_files import spec_of
from tests.support.errors import assert_names, raises_naming


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["-m", "num_minibatches=2,7,4"], ["num_minibatches=7", "divisor of 64"]),
        (["-m", "seed=0,1", "num_minibatches=64,1"], ["num_minibatches=64", "one sample"]),
        (["-m", "init_from=nowhere,null"], ["nowhere"]),
        (["-m", "agent=ppo,sac"], ["Unknown config key 'num_epochs'"]),
        (["-m", "env.max_episode_steps=10,-1"], ["max_episode_steps"]),
        (["-m", "optimizer=adam,adamm"], ["adamm"]),
        (["-m", "seed=0,-1"], ["seed must be"]),
        (["-m", "seed=0,1", "sweep={num_minibatches: [2,7]}"], ["num_minibatches=7"]),
        (["-m", "seed=0,1", "search={over: {num_minibatches: [7,9]},trials: 2}"], ["num_minibatches"]),
        (["sweep={num_minibatches: [2,7]}"], ["num_minibatches=7", "divisor"]),
        (["sweep={num_minibatches: [2,64]}"], ["one sample"]),
        (["search={over: {num_minibatches: [2,7]},trials: 2}"], ["search.over.num_minibatches: 7", "divisor"]),
        (["search={over: {discount: {low: 0.9, high: 1.5}},trials: 2}"], ["search.over.discount: 1.5"]),
        (["num_minibatches=64"], ["one sample", "agent.normalize_advantages=false"]),
        (["agent.network.torso=[100000,100000]"], ["GB of memory"]),
        (["agent.network.activation=numpy:tanh"], ["numpy:tanh failed", "jax.numpy"]),
        (["agent.network.activation=math:tanh"], ["math:tanh failed", "jax.numpy"]),
        (['agent.network.torso=[{name: "numpy:sort"}]'], ["numpy:sort failed", "jax.numpy"]),
    ],
)
def test_a_value_that_cannot_be_is_refused_before_anything_trains(
    arguments: list[str], parts: list[str], run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any("search=" in argument for argument in arguments):
        pytest.importorskip("optuna", reason="needs the extra optuna")
    monkeypatch.chdir(tmp_path)
    small = [word for word in SMALL if word.partition("=")[0] not in ("num_minibatches", "env.max_episode_steps")]
    out, err = run(cli.train, *small, "runs_folder=runs", *arguments)
    assert [part for part in parts if part not in err] == []
    assert "[1 of" not in out
    assert list(tmp_path.iterdir()) == []


def test_a_value_is_searched_if_one_of_the_others_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A searched value is accepted if it fits any searched value of the other setting."""
    pytest.importorskip("optuna", reason="needs the extra optuna")
    from evorl.sweeps.search import check_search

    over = "over: {num_envs: [6,12],num_minibatches: [3,4]}"
    small = [word for word in SMALL if word.partition("=")[0] not in ("num_minibatches", "num_envs")]
    spec = spec_of(*small, "num_envs=8", "rollout_length=1", f"search={{{over},trials: 2}}")
    assert check_search(spec, preparation.check_build).trials == 2


def test_jobs_that_differ_in_their_seeds_are_built_once(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class StoppedAtOnce(RuntimeError):
        pass

    built = []
    build = preparation.workflow_from_config

    def counted(config):
        built.append((config["seed"], config["agent"]["clip_epsilon"]))
        return build(config)

    def stop(*_: object, **__: object) -> None:
        raise StoppedAtOnce

    monkeypatch.setattr(preparation, "workflow_from_config", counted)
    monkeypatch.setattr("evorl.cli.multirun.train_runs", stop)
    with pytest.raises(StoppedAtOnce):
        run(cli.train, "-m", *SMALL, "agent.clip_epsilon=0.1,0.2", "seed=0,1,2", f"runs_folder={tmp_path}")
    assert built == [(0, 0.1), (0, 0.2)]


@pytest.mark.parametrize("source", ["latest", "ppo-cartpole", "{run: latest, parts: [policy]}"])
def test_all_runs_start_from_the_run_that_was_the_latest(
    source: str, run, tmp_path: Path, train_once: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = train_once(*SMALL)
    arguments = ["-m", *SMALL, "seed=0,1", f"init_from={source}", f"runs_folder={trained.path.parent.parent}"]
    sweeps: list[SweepFolder] = []
    monkeypatch.setattr("evorl.cli.multirun.train_runs", lambda sweep, *_, **__: sweeps.append(sweep))
    run(cli.train, *arguments, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    specs = [spec_of(*swept.overrides) for swept in sweeps[0].runs]
    assert [(spec.seed, spec.init_from.run) for spec in specs] == [(0, str(trained.path)), (1, str(trained.path))]
    assert {spec.init_from.parts for spec in specs} == {("policy",) if "parts" in source else None}


def test_a_failed_job_ends_in_a_status(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If one job diverges, the other is trained, and the command fails."""
    rate = "optimizer.learning_rate=1e-3,1e30"
    out, err = run(cli.train, "-m", *SMALL, "optimizer.max_grad_norm=null", rate, f"runs_folder={tmp_path}")
    assert "1 finished, 1 diverged" in out
    assert "1 run failed" in err
    assert "learning_rate=1e+30" in err
    assert "Error executing job" not in err
    (folder,) = tmp_path.glob("sweep_*")
    out, err = run(cli.train, f"resume={folder}")
    assert "skipped, because it diverged before" in out
    assert "1 run failed" in err


def test_a_recorder_that_does_not_exist_is_refused_before_a_folder_is_made(run, tmp_path: Path) -> None:
    _, err = run(cli.train, *SMALL, "recorders.own=[no_such_module:Recorder]", f"runs_folder={tmp_path / 'runs'}")
    assert "recorders.own" in err
    assert "no_such_module" in err
    assert not (tmp_path / "runs").exists()


def test_a_run_is_fine_tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def train(*arguments: str) -> RunFolder:
        monkeypatch.setattr(sys, "argv", ["evorl", *SMALL, f"runs_folder={tmp_path}", *arguments])
        cli.train()
        return RunFolder.latest(tmp_path)

    begun: list[Any] = []
    learn = Workflow.learn

    def noting(self: Workflow, state: Any = None, **others: Any) -> Any:
        begun.append(None if state is None else jax.device_get(state.agent_state.params))
        return learn(self, state, **others)

    monkeypatch.setattr(Workflow, "learn", noting)
    first = train()
    workflow = workflow_from_config(first.load_config())
    kept, _ = restore(workflow, RunCheckpointer(first.checkpoints), 0, "latest", ("agent_state",))
    second = train(
        "init_from=latest", "init_from.which=latest", "init_from.parts=[policy]", "optimizer.learning_rate=1e-4"
    )
    assert begun[0] is None
    same = jax.tree.map(np.array_equal, begun[1], jax.device_get(kept.agent_state.params))
    assert all(jax.tree.leaves(same["policy"]))
    assert not all(jax.tree.leaves(same["value"]))
    assert second.path != first.path
    log = second.log.read_text()
    assert f"Starts from {first.path}, checkpoint of 128 steps: policy (" in log
    assert "Newly initialized: value, optimizers" in log
    assert "activation" not in log
    stored = second.load_config()
    assert stored.init_from == {"run": str(first.path), "parts": ["policy"], "which": "latest"}
    assert RunCheckpointer(second.checkpoints).steps[-1] == 2
    third = train(f"init_from={first.path}", "agent.network.activation=silu")
    assert "agent.network.activation is tanh in" in third.log.read_text()


ACTIVATIONS = st.sampled_from(["tanh", "relu", None, {"name": "kaf", "kernel": "rbf2d"}, "my_parts:snake"])
NETWORKS = st.fixed_dictionaries({"network": ACTIVATIONS, "critic_network": ACTIVATIONS})


@hypothesis.settings(deadline=None)
@hypothesis.given(here=NETWORKS, there=NETWORKS, learner=st.sampled_from(["", "learner.", "inner.", "inner.learner."]))
def test_another_activation_is_told(here: dict[str, Any], there: dict[str, Any], learner: str) -> None:
    """Shapes do not depend on activations: parameters of another network were loaded without a remark."""
    configs = [{"agent": {part: {"activation": x} for part, x in each.items()}} for each in (here, there)]
    configs[1] = _nested(learner, configs[1])
    messages = list(preparation._differing_activations(*configs, RunFolder("runs/other")))
    used = [{part: x or each["network"] for part, x in each.items()} for each in (here, there)]
    differing = [part for part in there if used[0][part] != used[1][part]]
    assert len(messages) == len(differing)
    for message, part in zip(messages, differing, strict=True):
        new, old = (inline_yaml(each[part]) for each in used)
        assert_names(message, f"{learner}agent.{part}.activation is {old} in runs/other", f"but {new} here")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"], "init_from must be a run folder, a packed policy, latest, or a mapping"),
        ({"runs": "a"}, "unknown key of init_from 'runs'. Did you mean 'run'?"),
        ({"run": 3}, "init_from.run must be a run folder, a packed policy or latest; got 3."),
        ({"run": "a", "parts": []}, "init_from.parts must be a list of names such as [policy]"),
        ("nowhere", "There is no folder nowhere."),
    ],
)
def test_values_that_make_no_sense(given: Any, message: str, tmp_path: Path) -> None:
    workflow: Any = None
    with pytest.raises((ValueError, OSError)) as error:
        spec = RunSpec.from_config({"init_from": given, "runs_folder": str(tmp_path)})
        warm_start_from(str(spec.init_from.run), spec, workflow)
    assert message in str(error.value)


STORED = {"discount": 0.9, "agent": {"network": {"torso": [64]}}, "env": {"factory": "here:Walk"}, "devices": 1}
KINDS: tuple[dict[str, Any], ...] = (
    {"sweep": None, "search": None},
    {"sweep": {"discount": [0.9, 0.99]}},
    {"sweep": {"over": {"discount": [0.9, 0.99]}, "draws": 3}},
    {"search": {"over": {"discount": [0.9, 0.99]}, "trials": 3}},
)
HARMLESS: tuple[dict[str, Any], ...] = ({}, {"devices": 2}, {"checkpoints_kept": 9}, {"env": {"factory": "there:Walk"}})
OF_LEARNING: tuple[dict[str, Any], ...] = (
    {"discount": 0.5},
    {"agent": {"network": {"torso": [32]}}},
    {"total_timesteps": 5},
)


@hypothesis.given(st.sampled_from(KINDS), st.sampled_from(KINDS), st.sampled_from(HARMLESS + OF_LEARNING))
def test_a_resume_keeps_what_sweeps_and_searches_compare(
    before: dict[str, Any], after: dict[str, Any], change: dict[str, Any]
) -> None:
    """The table would attribute returns to settings that were never trained; a single run may change its settings."""
    of_one_run = KINDS[0] in (before, after) and before is after
    if of_one_run or (before is after and change in HARMLESS):
        _refuse_other_comparison(STORED | before, STORED | after | change)
    else:
        with raises_naming(ValueError, "sweep or search", "omit resume"):
            _refuse_other_comparison(STORED | before, STORED | after | change)
    for name in ("sweep.at_once", "sweep.memory", "search.trials", "search.pruner"):
        kind, _, option = name.partition(".")
        if before.get(kind):
            _refuse_other_comparison(STORED | before, STORED | {kind: {**before[kind], option: 7}})


def test_a_sweep_of_an_older_version_is_resumed_unchanged(tmp_path: Path) -> None:
    """Its config lacks settings that were added later; their defaults change nothing."""
    config = spec_of("agent=ppo", "env=cartpole", "sweep={discount: [0.9, 0.99]}").as_config()
    del config["init_from"]["which"], config["deterministic"]
    folder = RunFolder.create(tmp_path, config)
    with scope():
        spec, found = _stored_run(str(folder.path), StoredRun(resume=str(folder.path)), [])
    assert (spec.init_from.which, found) == ("best", folder)


def test_no_run_is_nothing_and_a_resume_refuses_one() -> None:
    for config in ({}, {"init_from": None}, {"init_from": {"run": None}}):
        assert RunSpec.from_config(config).init_from.run is None
    refuse_with_resume(["resume=latest", "total_timesteps=3", "+seeds=3"])
    for argument in ("init_from.run=latest", "init_from={run: a}", "seed=3", "++num_seeds=2"):
        with raises_naming(ValueError, argument, "new run", "resume"):
            refuse_with_resume(["resume=latest", argument])
    assert overrides_first(["init_from=latest"]) == ["init_from.run=latest"]
    assert overrides_first(["init_from={run: a}"]) == ["init_from={run: a}"]


def _nested(above: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an algorithm whose nested learner, such as ``inner.learner.``, has ``settings``."""
    for name in reversed(above.split(".")[:-1]):
        settings = {name: settings}
    return settings


@pytest.mark.parametrize("above", ["", "inner.", "learner.", "inner.learner."])
def test_a_hopeless_replay_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, above: str) -> None:
    monkeypatch.setattr(preparation, "available_bytes", lambda: 16 * 10**9)
    spec = RunSpec(workflow=_nested(above, {"replay_capacity": 1e12}))
    fits = "fit is 800,000,000, at 16 bytes or more for each of the transitions"
    with raises_naming(ValueError, f"{above}replay_capacity=1,000,000,000,000 ", "16 GB of memory", fits):
        refuse_excessive_sizes(spec)
    for capacity in (1e8, 1_000_000, None, "x"):
        refuse_excessive_sizes(RunSpec(workflow={"replay_capacity": capacity}))


@pytest.mark.parametrize("above", ["", "inner.", "learner.", "inner.learner."])
@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ({"num_envs": 1e6, "rollout_length": 1e5}, ["num_envs=1,000,000", "rollout_length=100,000", "2,147,483,647"]),
        ({"num_envs": 4, "rollout_length": 2e9}, ["rollout_length=2,000,000,000", "2,147,483,647"]),
        ({"num_envs": 1e3, "rollout_length": 1e6}, ["rollout_length=1,000,000 ", "could fit is 800,000"]),
        ({"eval_episodes": 1e12}, ["eval_episodes=1,000,000,000,000 ", "largest value that could fit is 800,000,000"]),
        ({"replay_capacity": 1e10}, ["replay_capacity=10,000,000,000 ", "largest value that could fit is 800,000,000"]),
        ({"pop_size": 1e9}, ["pop_size=1,000,000,000 ", "largest value that could fit is 50,000,000"]),
    ],
)
def test_hopeless_sizes_are_refused_with_the_number_and_the_limit(
    monkeypatch: pytest.MonkeyPatch, above: str, sizes: dict[str, float], parts: list[str]
) -> None:
    monkeypatch.setattr(preparation, "available_bytes", lambda: 16 * 10**9)
    with raises_naming(ValueError, f"{above}{parts[0]}") as error:
        refuse_excessive_sizes(RunSpec(workflow=_nested(above, sizes)))
    assert all(part in str(error.value) for part in parts)
    refuse_excessive_sizes(RunSpec(workflow=dict.fromkeys(sizes, 100)))
    refuse_excessive_sizes(RunSpec(workflow=dict.fromkeys(sizes, "abc") | {"env": "x"}))


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (
            RunSpec(num_seeds=10**9),
            ("num_seeds=1,000,000,000", "fit is 50,000,000,", "of the seeds"),
        ),
        (
            RunSpec(workflow={"pop_size": 1e9}),
            ("pop_size=1,000,000,000", "fit is 50,000,000,", "of the members"),
        ),
        (
            RunSpec(workflow={"optimizer": {"pop_size": 1e12}}),
            ("optimizer.pop_size=1,000,000,000,000", "fit is 800,000,000,", "individ"),
        ),
    ],
)
def test_hopeless_numbers_of_seeds_and_individuals_are_refused(
    monkeypatch: pytest.MonkeyPatch, spec: RunSpec, part: tuple[str, ...]
) -> None:
    monkeypatch.setattr(preparation, "available_bytes", lambda: 16 * 10**9)
    with raises_naming(ValueError, *part):
        refuse_excessive_sizes(spec)
    refuse_excessive_sizes(RunSpec(num_seeds=100, workflow={"pop_size": 100, "optimizer": {"pop_size": 100}}))
    refuse_excessive_sizes(RunSpec(workflow={"optimizer": "sgd", "pop_size": None}))


@pytest.mark.parametrize("library", ["gymnasium", "envpool", "host", "pettingzoo"])
def test_many_simulators_are_refused_before_the_first_is_started(library: str) -> None:
    with raises_naming(ValueError, "num_envs=1,000,000", f"simulators of {library}", "at most 20,000"):
        refuse_excessive_sizes(RunSpec(workflow={"num_envs": 1e6, "env": {"library": library, "name": "x"}}))
    refuse_excessive_sizes(RunSpec(workflow={"num_envs": 1e6, "env": {"library": "brax", "name": "x"}}))
