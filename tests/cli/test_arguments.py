"""Overrides are moved before flags; overrides without effect, unknown flags and words without a name are rejected."""

from __future__ import annotations

import re
from pathlib import Path

import hypothesis
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import strategies
from omegaconf import OmegaConf

from evorl.cli.arguments import (
    PATHS,
    argument_text,
    as_hydra_overrides,
    check_overrides,
    is_path,
    overrides_first,
    refuse_unknown_flags,
    with_literal_text,
    without_implied,
)
from evorl.cli.composition import compose_config
from evorl.cli.settings import commented_settings, run_comments, workflow_settings
from tests.support.config_files import CONFIGS, composed
from tests.support.errors import raises_naming


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("agent/ppo.yaml", "experiment/ppo/gymnax/CartPole-v1.yaml", "experiment/sac/hopper.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "ordered"),
    [
        (["a=1", "-m", "seed=0,1"], ["a=1", "seed=0,1", "-m"]),
        (["--cfg", "job", "a=1", "--config-dir", "mine"], ["a=1", "--cfg", "job", "--config-dir", "mine"]),
        (["--config-dir=mine", "+a=1", "~b"], ["+a=1", "~b", "--config-dir=mine"]),
        (["-m", "a=-1,2", 'b="x y"'], ["a=-1,2", 'b="x y"', "-m"]),
        (["--cfg", "job", "experiment=null", "seed=1"], ["~experiment", "seed=1", "--cfg", "job"]),
        (["experiment@inner=null", "seed=1"], ["~experiment@inner", "seed=1"]),
        (["hydra.mode=MULTIRUN", "seed=0,1"], ["seed=0,1", "-m"]),
        ([], []),
    ],
)
def test_overrides_are_put_before_flags(arguments: list[str], ordered: list[str]) -> None:
    assert overrides_first(arguments) == ordered


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        (["optimizer=sgd"], ["optimizer.name=sgd"]),
        (["learner.archive.name=grid"], ["learner.archive=grid"]),
        (["inner.actor_optimizer='a'", "--cfg", "job"], ["inner.actor_optimizer.name='a'"]),
        (["optimizer=sgd", "optimizer.name=adam"], []),
        (["intrinsic.optimizer.name=sgd", "optimizer={name: sgd}", "archive=null", "experiment@inner=a"], []),
        (["optimizer=sgd,adam", "-m"], []),
    ],
)
def test_both_forms_of_a_kind_are_passed_on(arguments: list[str], added: list[str]) -> None:
    assert as_hydra_overrides(arguments) == [*added, *arguments]
    assert without_implied([*added, *arguments]) == arguments


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        (
            "~total_timesteps",
            ("~total_timesteps", "removed", "total_timesteps=null"),
        ),
        ("~env.name=x", ("~env.name=x", "removed", "env.name=null")),
        ("experiment=sac/hoper", ("experiment 'sac/hoper'", "'sac/hopper'")),
        ("experiment@inner=sac/hoper", ("experiment 'sac/hoper'", "'sac/hopper'")),
        ("+experiment=zzz", ("experiment 'zzz'", "Available")),
        ("experiment='zzz'", ("experiment 'zzz'", "Available")),
    ],
)
def test_what_would_have_no_effect_is_refused(override: str, parts: tuple[str, ...], folder: Path) -> None:
    with raises_naming(ValueError, *parts):
        check_overrides([override], [folder])


def test_what_has_an_effect_passes(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    mine = tmp_path_factory.mktemp("mine")
    (mine / "experiment").mkdir()
    (mine / "experiment" / "one.yaml").write_text("")
    overrides = ["~experiment", "experiment=null", "experiment=ppo/gymnax/CartPole-v1", "experiment=one", "seed=3"]
    overrides += ["experiment='one'", 'experiment="sac/hopper"']
    check_overrides([*overrides, "~agent@inner", "+env.x=1"], [folder, mine])


NASTY = [
    "josé",
    "with space",
    "a=b",
    "[x]",
    "{a: 1}",
    "a,b",
    "it's",
    'say "so"',
    "cost$5",
    "#1",
    "2026",
    "1e3",
    "true",
    "null ",
    "a;b & c|d",
    "(x)!?*",
    "back\\slash",
    "日本",
    "~tilde",
    "-dash",
    "a:b@c",
]


def parsed(override: str) -> object:
    return OverridesParser.create().parse_override(override).value()


@hypothesis.given(strategies.text("ab é=[]{}(),'\"$#\\;!&|<>?*%@^\t+-./日:~0", min_size=1, max_size=12))
@pytest.mark.parametrize("key", ["resume", "runs_folder", "replay.load", "learner.replay.load", "serve.cert"])
def test_a_path_is_taken_literally(key: str, text: str) -> None:
    hypothesis.assume("${" not in text and not (len(text) > 1 and text[0] == text[-1] and text[0] in "'\""))
    (argument,) = with_literal_text([f"{key}={text}"])
    assert parsed(argument) == text
    assert argument_text(argument) == text


@pytest.mark.parametrize("name", NASTY)
def test_a_path_is_composed_as_it_was_typed(name: str, tmp_path: Path) -> None:
    folder = str(tmp_path / name)
    arguments = overrides_first([f"runs_folder={folder}", f"init_from={folder}", f"resume={name}"])
    config = compose_config(arguments)
    assert (config.runs_folder, config.init_from.run, config.resume) == (folder, folder, name)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["resume=null", "runs_folder="], ["resume=null", "runs_folder="]),
        (["resume=true", "compilation_cache=true"], ["resume='true'", "compilation_cache=true"]),
        (["resume='a, b'"], ["resume='a, b'"]),  # quoted for Hydra by the user
        (["hydra.run.dir=x/${now:%Y}"], ["hydra.run.dir=x/${now:%Y}"]),
        (["init_from={run: latest, parts: [policy]}"], ["init_from={run: latest, parts: [policy]}"]),
        (["init_from.run=josé,b", "-m"], ["init_from.run='josé',b", "-m"]),
        (["init_from.run=josé,b"], ["init_from.run='josé,b'"]),
        (["runs_folder=a,b", "-m"], ["runs_folder='a,b'", "-m"]),
        (["init_from=null,josé", "-m"], ["init_from=null,'josé'", "-m"]),
        (["title=Größe", "title=plain text", "title=a,b"], ["title='Größe'", "title=plain text", "title=a,b"]),
        (["title=é,b", "-m"], ["title='é',b", "-m"]),
        (["sweep={a: [1,2}", "seed=range(3)"], ["sweep={a: [1,2}", "seed=range(3)"]),  # rejected by Hydra itself
        (["seed=0,1", "discount=0.9", "agent=ppo"], ["seed=0,1", "discount=0.9", "agent=ppo"]),
    ],
)
def test_what_is_quoted(arguments: list[str], expected: list[str]) -> None:
    assert with_literal_text(arguments) == expected


def test_a_file_that_exists_is_named_literally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("'quoted'", "a,b", "${x}"):
        (tmp_path / name).mkdir()
        (argument,) = with_literal_text([f"init_from.run={name}"])
        node = OmegaConf.create({"value": parsed(argument)})
        assert node.value == name
        assert argument_text(argument) == name


def test_a_folder_of_configs_may_have_an_equals_sign() -> None:
    arguments = ["--config-dir", "folder/a=b", "seed=1", "-m"]
    assert overrides_first(arguments) == ["seed=1", "--config-dir", "folder/a=b", "-m"]


# Settings whose description mentions a file or folder, but whose values are not paths.
NO_PATHS = re.compile(
    r"trust|evaluation(\..*)?|recorders(\..*)?|render_interval|env\.name|resume|run|init_from(\.which|\.parts)?|replay"
    r"|defaults|inner|learner|evolution"
)


def test_every_setting_that_is_said_to_be_a_file_or_folder_is_a_path() -> None:
    comments = run_comments()
    for file in CONFIGS.rglob("*.yaml"):
        comments |= {name: comment for name, _, comment in commented_settings(file.read_text(encoding="utf-8"))}
    for agent in ("ppo", "sac", "r2d2", "meta/pbt", "erl/erl"):
        config = OmegaConf.to_container(composed(f"agent={agent}", "env=pendulum"), resolve=True)
        comments |= {name: text for name, _, text in workflow_settings(config)}
    spoken = {name for name, text in comments.items() if re.search(r"\b(file|folder)\b", text)}
    assert {name for name in spoken if not is_path(name) and not NO_PATHS.fullmatch(name)} == set()
    assert {path for path in PATHS if "hydra" not in path} <= comments.keys()
    assert is_path("+learner.replay.load")
    assert not is_path("replay.ratio")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--seed", "3"], ("--seed", "seed=3")),
        (["--total-timesteps=1000", "agent=ppo"], ("--total-timesteps", "total_timesteps=1000")),
        (["--seed", "agent=ppo"], ("--seed", "seed=VALUE")),
        (["--seed", "--plan"], ("--seed", "seed=VALUE")),
        (["--title", "my run"], ("'title=my run'",)),
        (["-n", "4"], ("-n", "n=4")),
        (["--run", "runs/a"], ("--run", "run=runs/a")),
        (["--run=runs/a"], ("--run", "run=runs/a")),
        (["ppo", "cartpole"], ("'ppo'", "agent=ppo env=cartpole")),
        (["ppo", "sac"], ("'ppo' 'sac'", "such as")),
        (["nothing", "seed=3"], ("'nothing'", "name=value")),
        (["--cfg", "job", "--plan"], ("--cfg", "--plan", "one of them")),
        (["-c", "job", "-m", "agent=ppo,sac"], ("--cfg", "remove -m")),
    ],
)
def test_the_setting_that_is_meant_is_suggested(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        refuse_unknown_flags(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "agent=ppo,sac", "--config-dir", "mine", "--plan"],
        ["--config-dir=mine", "-c", "job", "--resolve", "+a=1", "~b", "title=--x"],
        ["--info", "plugins"],
        ["--multi", "seed=0,1"],
        ["--cfg", "job", "--config-dir", "a=b"],
        [],
    ],
)
def test_flags_of_hydra_pass(arguments: list[str]) -> None:
    refuse_unknown_flags(arguments)
