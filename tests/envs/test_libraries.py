"""Tables of environment libraries."""

from __future__ import annotations

from evorl import envs
from evorl.config.names import load
from evorl.envs.brax import create_wrapped_brax_env
from evorl.envs.libraries import COMPILED_LIBRARIES, HOST_FACTORY, HOST_LIBRARIES, USER_FACTORY, available_envs


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
