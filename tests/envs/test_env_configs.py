"""Config files of environments: one name each, over a common list of documented options."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hydra import compose
from omegaconf import OmegaConf

from evorl.cli.composition import initialize_configs
from evorl.cli.config_tree import config_folder
from evorl.envs import available_envs
from evorl.envs.options import EnvOptions

FOLDER = config_folder() / "env"
# All names of a library without files are composed in the same way.
NAMES = [
    (library, name)
    for library, names in available_envs().items()
    for name in (names if (FOLDER / library).is_dir() else names[:2])
]
# Differences from the options of every environment, by library.
OF_LIBRARY = {
    "brax": {"backend": None, "max_episode_steps": 1000},
    "gymnax": {},
    "host": {"host": "auto", "num_threads": None},
    "playground": {"impl": None, "action_repeat": None},
    "jumanji": {"generator": None},
    "craftax": {},
    "xminigrid": {},
    "jaxmarl": {"world_state": False},
    "mjx": {"iterations": None, "ls_iterations": None},
    "remote": {},
}
# Options of single environments: the arguments of their factory functions.
OF_NAME = {
    "bit_flip": {"num_bits": 15},
    "point_maze": {"maze": "u", "start": "anywhere", "goal": "anywhere"},
    "reacher": {"backend": None},
}
OBSERVED = {
    "cartpole_hidden_velocities": "[0, 2] # position of the cart and angle of the pole",
    "pendulum_hidden_velocity": "[0, 1] # cosine and sine of the angle",
}
MORE_THAN_A_NAME = (*OBSERVED, "remote", "user")
SHORT_NAMES = {
    path.stem: path.read_text().split("[")[1].split("]")[0]
    for path in FOLDER.glob("[!_]*.yaml")
    if path.stem not in MORE_THAN_A_NAME
}


def _composed(*overrides: str) -> dict:
    with initialize_configs():
        config = compose("config", ["agent=random", *overrides])
    return OmegaConf.to_container(config)["env"]  # pyright: ignore[reportReturnType, reportArgumentType, reportCallIssue]


def _expected(library: str, name: str) -> dict:
    options = {field.name: field.default for field in dataclasses.fields(EnvOptions)}
    for set_by_the_workflow in ("parallel", "autoreset_mode"):
        del options[set_by_the_workflow]
    return {
        "library": library,
        "name": name,
        **options,
        **(OF_NAME[name] if library == "goal" else OF_LIBRARY[library]),
    }


@pytest.mark.parametrize(("library", "name"), NAMES)
def test_an_environment_is_composed_of_its_name_and_the_options(library: str, name: str) -> None:
    assert _composed(f"env={library}/{name}") == _expected(library, name)


@pytest.mark.parametrize("short", SHORT_NAMES)
def test_a_short_name_stands_for_an_environment(short: str) -> None:
    library, _, name = SHORT_NAMES[short].partition("/")
    assert _composed(f"env={short}") == _expected(library, name)


def test_options_are_set_on_the_command_line() -> None:
    config = _composed("env=hopper", "env.backend=spring", "env.history=4", "env.observed=[0,2]")
    assert config == {**_expected("brax", "hopper"), "backend": "spring", "history": 4, "observed": [0, 2]}
    hidden = _composed("env=cartpole_hidden_velocities")
    assert hidden == {**_expected("gymnax", "CartPole-v1"), "observed": [0, 2]}


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("[!_]*.yaml")), ids=lambda path: path.stem)
def test_the_file_of_an_environment_holds_its_name_only(path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    if path.stem in OBSERVED:
        assert lines[1:] == ["env:", f"  observed: {OBSERVED[path.stem]}"]
    elif path.parent.name == "atari":
        assert lines[:2] == ["defaults: [/env/_atari, _self_]", "env:"]
        assert len(lines) == 3
        assert lines[2].startswith("  name: ALE/")
    elif path.parent.name == "goal":
        assert lines[:3] == ["defaults: [/env/_goal, _self_]", "env:", f"  name: {path.stem}"]
        assert all(re.fullmatch(r"  \w+: \w+ # .+", line) for line in lines[3:])
    elif path.stem not in MORE_THAN_A_NAME:
        assert len(lines) <= 2
        assert "#" not in "".join(lines)


BASES = [path for path in FOLDER.glob("_*.yaml") if path.name != "_spaces.yaml"]  # which is a table


@pytest.mark.parametrize("path", [*BASES, FOLDER / "remote.yaml"], ids=lambda path: path.stem)
def test_every_option_is_explained_where_it_is_declared(path) -> None:
    text = path.read_text()
    assert text.startswith("# @package _global_\n# ")
    options = re.findall(r"^  (?!library|name)\w+:.*$", text, re.MULTILINE)
    bare = [line for line in options if " # " not in line]
    assert not bare, f"no comment behind {bare}"


@pytest.mark.parametrize(
    ("library", "name"), [("gymnasium", "Hopper-v5"), ("gymnasium", "ALE/Pong-v5"), ("envpool", "Pong-v5")]
)
def test_any_name_of_a_library_of_simulators_is_an_environment(library: str, name: str) -> None:
    config = _composed(f"env={library}/{name}", "env.host=callback")
    assert (config["library"], config["name"], config["host"]) == (library, name, "callback")
    assert set(_expected("gymnax", "")) < set(config)


def test_remote_simulators_say_what_they_show_and_are_told() -> None:
    config = _composed("env=remote", "env.obs_space={shape: [4]}", "env.action_space={n: 2}")
    host = {"host": "auto", "obs_space": {"shape": [4]}, "action_space": {"n": 2}}
    assert config == {**_expected("remote", "simulator"), **host}


def test_an_environment_of_ones_own_is_named_by_its_function() -> None:
    config = _composed("env=user", "env.factory=my_envs:make", "+env.gravity=5")
    assert (config["library"], config["factory"], config["gravity"]) == (None, "my_envs:make", 5)
