"""Names of intrinsic rewards, and errors in their settings."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from evorl.agents.intrinsic_kinds import KINDS, make_intrinsic
from evorl.envs import create_env
from tests.support.errors import raises_naming


@pytest.mark.parametrize("name", KINDS)
def test_a_name_abbreviates_a_mapping(name: str) -> None:
    env = create_env({"library": "gymnax", "name": "CartPole-v1", "skills": 3}, parallel=2)
    bonus = make_intrinsic(name, env)
    assert type(bonus) is KINDS[name]
    assert jax.tree.structure(bonus) == jax.tree.structure(make_intrinsic({"name": name}, env))


@pytest.mark.parametrize(
    ("config", "parts"),
    [("e3", ("intrinsic.name 'e3'", "'e3b'")), ({"name": "e3b", "rigde": 1.0}, ("'rigde'", "'ridge'"))],
)
def test_wrong_settings(config: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        make_intrinsic(config, create_env("CartPole-v1", parallel=2))
