"""Images too small for a list of layers are rejected, with the minimum size."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evorl.networks.torsos import MAX_LAYERS, PRESETS, Torso, build_torso, min_side
from tests.support.errors import raises_naming
from tests.support.small_workflows import small

layer = st.one_of(
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.sampled_from(["same", "valid"])).map(
        lambda x: {"conv": {"filters": 2, "size": x[0], "stride": x[1], "border": x[2]}}
    ),
    st.just({"residual": {"filters": 2, "num_blocks": 1}}),
)


def shape_of(torso: Torso, side: int) -> Any:
    image = jax.ShapeDtypeStruct((1, side, side + 1, 2), jnp.float32)
    return jax.eval_shape(lambda x: torso.init_with_output(jax.random.key(0), x)[0], image).shape


@settings(max_examples=25, deadline=None)
@given(st.lists(layer, min_size=1, max_size=3))
def test_the_least_side_is_the_least_that_leaves_something(layers: list) -> None:
    torso = build_torso({"torso": [*layers, "flatten"]})
    least = min_side(torso.layers)
    assert shape_of(torso, least)[-1] > 0
    if least > 1:
        with raises_naming(ValueError, f"images of {least - 1} x {least}", f"at least {least}"):
            shape_of(torso, least - 1)


def test_small_images_are_refused_with_the_presets_that_fit() -> None:
    assert min_side(PRESETS["nature"]) == 36
    with raises_naming(ValueError, "10 x 10", "at least 36.", "minatar, classic, universe, impala"):
        small("dqn", "Breakout-MinAtar", agent={"network": {"torso": "nature"}})


@pytest.mark.parametrize(
    ("network", "parts"),
    [
        (None, ("agent.network", "mapping", "null")),
        ({"torso": None}, ("torso", "list", "None")),
        ({"torso": [10**9]}, ("size", "1,048,576", "got 1000000000")),
        ({"torso": [10**400]}, ("size", "401 digits")),
        ({"torso": [8] * (MAX_LAYERS + 1)}, (f"{MAX_LAYERS + 1} layers",)),
        ({"torso": [None]}, ("size", "got null")),
        ({"torso": [8], "recurrent": {"name": "gru", "size": 10**9}}, ("size", "1,048,576")),
        ({"torso": [8], "heads": None}, ("agent.network.heads", "mapping", "null")),
        ({"torso": [8], "activation": None}, ("activation None", "Available: celu")),
        ({"torso": [8], "layer_norm": None}, ("layer_norm", "true or false")),
    ],
)
def test_settings_that_no_network_has_are_refused(network: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("ppo", "CartPole-v1", agent={"network": network})
