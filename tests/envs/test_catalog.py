"""Names of environments: names from other frameworks are found in all libraries, and the lists are up to date."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from evorl.cli.config_tree import config_folder, config_names, long_names
from evorl.envs.catalog import (
    ATARI_GAMES,
    DM_CONTROL,
    GYMNASIUM,
    PETTINGZOO,
    describe_library,
    describe_suggestions,
    suggest_envs,
)
from evorl.envs.libraries import available_envs

ALL = [f"{library}/{name}" for library, names in available_envs().items() if library != "remote" for name in names]
SHORT = {"hopper": "brax/hopper", "cartpole": "gymnax/CartPole-v1", "breakout": "gymnax/Breakout-MinAtar"}


def paths(name: str) -> list[str]:
    """Return the suggested paths, with the short names of the config tree."""
    return [suggestion.path for suggestion in suggest_envs(name, SHORT)]


@pytest.mark.parametrize("path", ALL)
def test_every_environment_is_found_however_it_is_spelt(path: str) -> None:
    library, _, name = path.partition("/")
    plain = re.sub(r"[-_]v\d+$", "", name)
    for typed in (name, f"{library}/{name}", plain, plain.lower(), plain.replace("-", "_"), f"other/{name}"):
        assert path in [suggestion.path for suggestion in suggest_envs(typed)], typed


@pytest.mark.parametrize(
    ("typed", "first", "also"),
    [
        ("Hopper-v5", "gymnasium/Hopper-v5", ["host/hopper", "hopper", "mjx/hopper"]),
        ("Hopper-v2", "gymnasium/Hopper-v5", ["host/hopper"]),
        ("Hopper", "hopper", ["host/hopper", "mjx/hopper", "gymnasium/Hopper-v5"]),
        ("walker2d-v4", "gymnasium/Walker2d-v5", ["host/walker2d"]),
        ("mujoco/ant", "gymnasium/Ant-v5", ["brax/ant", "mjx/ant"]),
        ("Walker2DBulletEnv-v0", "gymnasium/Walker2d-v5", ["brax/walker2d"]),
        ("InvertedPendulum", "brax/inverted_pendulum", ["host/inverted_pendulum"]),
        ("LunarLander-v3", "gymnasium/LunarLander-v3", []),
        ("LunarLander-v2", "gymnasium/LunarLander-v3", []),
        ("gym/LunarLander", "gymnasium/LunarLander-v3", []),
        ("CarRacing-v2", "gymnasium/CarRacing-v3", []),
        ("CartPole-v0", "gymnasium/CartPole-v1", ["cartpole"]),
        ("atari/breakout", "gymnasium/ALE/Breakout-v5", ["envpool/Breakout-v5", "breakout"]),
        ("ALE/Breakout-v5", "gymnasium/ALE/Breakout-v5", ["envpool/Breakout-v5"]),
        ("BreakoutNoFrameskip-v4", "gymnasium/ALE/Breakout-v5", ["envpool/Breakout-v5"]),
        ("PongDeterministic-v4", "gymnasium/ALE/Pong-v5", ["envpool/Pong-v5"]),
        ("ALE/SpaceInvaders-v5", "gymnasium/ALE/SpaceInvaders-v5", ["gymnax/SpaceInvaders-MinAtar"]),
        ("MinAtar/Breakout-v1", "breakout", ["gymnasium/ALE/Breakout-v5"]),
        ("minatar/seaquest", "gymnax/Seaquest-MinAtar", []),
        ("dm_control/cheetah-run", "playground/CheetahRun", []),
        ("dmc_humanoid_walk", "playground/HumanoidWalk", []),
        ("MiniGrid-Empty-5x5-v0", "xminigrid/MiniGrid-Empty-5x5", []),
        ("simple_spread_v3", "jaxmarl/MPE_simple_spread_v3", []),
        ("pursuit_v4", "pettingzoo/sisl/pursuit-v5", []),
        ("FetchReach-v2", "gymnasium/FetchReach-v4", []),
        ("bsuite/catch", "gymnax/Catch-bsuite", []),
        ("Craftax-Symbolic-v1", "craftax/Craftax-Symbolic-v1", []),
        ("Hoper-v5", "gymnasium/Hopper-v5", ["host/hopper"]),
        ("lunarlnder", "gymnasium/LunarLander-v3", []),
    ],
)
def test_names_of_other_frameworks_lead_to_ours(typed: str, first: str, also: Iterable[str]) -> None:
    found = paths(typed)
    assert found[0] == first
    assert set(also) <= set(found)


def test_a_library_that_was_chosen_is_kept() -> None:
    assert paths("brax/hoper") == ["brax/hopper"]
    assert paths("gymnax/Hopper")[0] == "hopper"
    assert paths("of/nothing/that/exists") == []


def test_what_has_to_be_installed_is_named() -> None:
    message = describe_suggestions(suggest_envs("LunarLander-v3"))
    assert "'gymnasium/LunarLander-v3' (extra box2d)" in message
    assert "(extra atari)" in describe_suggestions(suggest_envs("ALE/Pong-v5"))
    assert "env=atari/pong env.name=ALE/Pong-v5" in describe_suggestions(suggest_envs("ALE/Pong-v5"))
    assert describe_suggestions([]) == ""


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        ("openai-gym", ["env=gymnasium/<name>", "'gymnasium/CartPole-v1' (extra gymnasium)"]),
        ("OpenAI_Gym", ["env=gymnasium/<name>"]),
        ("gym", ["env=gymnasium/<name>"]),
        ("gymnasium", ["env=gymnasium/<name>"]),
        ("brax", ["env=brax/<name>", "'brax/"]),
        ("dm_control/nothing", ["env=playground/<name>"]),
        ("atari", ["env=atari/pong", "env.name=ALE/"]),
        ("vizdoom", ["evorl new <folder> env=vizdoom"]),
        ("vizdoom/basic", ["evorl new <folder> env=vizdoom"]),
        ("VizdoomBasic-v1", ["evorl new <folder> env=vizdoom"]),
        ("doom", ["evorl new <folder> env=vizdoom"]),
        ("deepmind-lab", ["evorl new <folder> env=deepmind-lab"]),
        ("deepmind_lab/nav_maze", ["evorl new <folder> env=deepmind-lab"]),
        ("dmlab", ["evorl new <folder> env=deepmind-lab"]),
    ],
)
def test_a_library_is_answered_with_how_its_environments_are_named(typed: str, parts: list[str]) -> None:
    described = describe_library(typed)
    assert [part for part in parts if part not in described] == []


def test_other_names_are_no_libraries() -> None:
    assert [name for name in ("cartpole", "nothing", "of/nothing", "") if describe_library(name)] == []


def test_config_files_are_found_too() -> None:
    folder = config_folder()
    names = config_names(folder / "env")
    found = suggest_envs("cartpole_hidden_velocity", long_names(folder), names)
    assert found[0].path == "cartpole_hidden_velocities"
    assert "atari/pong" in [each.path for each in suggest_envs("PongNoFrameskip-v4", long_names(folder), names)]


def test_the_lists_are_those_of_the_registries() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    own = {name for names in list(GYMNASIUM.values())[:2] for name in names.split()}
    assert own <= set(gymnasium.registry)
    newest: dict[str, str] = {}
    for name in own:
        newest[name.rpartition("-v")[0]] = name
    for name in gymnasium.registry:
        base, _, version = name.rpartition("-v")
        if base in newest:
            assert int(version) <= int(newest[base].rpartition("-v")[2]), name


def test_the_games_are_those_of_the_emulator() -> None:
    ale_py = pytest.importorskip("ale_py")
    gymnasium = pytest.importorskip("gymnasium")
    gymnasium.register_envs(ale_py)
    there = {name[4:-3] for name in gymnasium.registry if name.startswith("ALE/")}
    assert set(ATARI_GAMES) <= there


def test_the_tasks_are_those_of_dm_control() -> None:
    shimmy = pytest.importorskip("shimmy")
    gymnasium = pytest.importorskip("gymnasium")
    gymnasium.register_envs(shimmy)
    assert {f"dm_control/{task}-v0" for task in DM_CONTROL} <= set(gymnasium.registry)


def test_the_agents_are_those_of_pettingzoo() -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    assert set(PETTINGZOO) <= set(pettingzoo.parallel_registry)
