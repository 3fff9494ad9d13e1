"""Tables of environment libraries."""

from __future__ import annotations

import pytest

from evorl import envs
from evorl.config.names import load
from evorl.envs.brax import create_wrapped_brax_env
from evorl.envs.libraries import (
    COMPILED_LIBRARIES,
    HOST_FACTORY,
    HOST_LIBRARIES,
    USER_FACTORY,
    available_envs,
    short_title,
)


def test_available_envs() -> None:
    names = available_envs()
    further = {"mjx", "playground", "jumanji", "craftax", "xminigrid", "jaxmarl"}
    assert set(names) == {"brax", "gymnax", "goal", "gymnasium", "envpool", "host", "pettingzoo", "remote"} | further
    assert "hopper" in names["brax"]
    assert len(names["gymnax"]) == 25


def test_every_entry_names_a_function() -> None:
    for path in (*HOST_LIBRARIES.values(), *COMPILED_LIBRARIES.values(), HOST_FACTORY, USER_FACTORY):
        assert callable(load(path)), path


def test_creation_functions_are_names_of_the_package() -> None:
    assert envs.create_wrapped_brax_env is create_wrapped_brax_env


@pytest.mark.parametrize(
    ("title", "short"),
    [
        ("gymnax/Pendulum-v1", "Pendulum-v1"),
        ("gymnasium/Pendulum-v1", "Pendulum-v1 (gymnasium)"),
        ("mjx/ant", "ant (mjx)"),
        ("brax/ant", "ant"),
        ("gymnasium/Ant-v5", "Ant-v5"),
        ("gymnasium/ALE/Pong-v5", "ALE/Pong-v5"),
        ("envpool/Ant-v4", "Ant-v4 (envpool)"),
        ("mine:make", "mine:make"),
        ("", ""),
    ],
)
def test_a_title_names_the_library_of_an_ambiguous_environment(title: str, short: str) -> None:
    assert short_title(title) == short
