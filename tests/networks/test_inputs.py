from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents.observations import select_observation
from evorl.networks.inputs import as_float, network_input
from evorl.types import PyTreeDict

OBS = PyTreeDict(state=jnp.ones(3), privileged=jnp.zeros(5))


def test_an_entry_is_chosen_by_its_key() -> None:
    assert select_observation(OBS, "state").shape == (3,)
    assert select_observation(OBS, None) is OBS
    with pytest.raises(ValueError, match=r"no entry 'stat'\. Did you mean 'state'\? Available: privileged, state"):
        select_observation(OBS, "stat")
    with pytest.raises(ValueError, match="one array without entries: remove the observation key 'state'"):
        select_observation(jnp.ones(3), "state")


def test_pixels_are_scaled_and_other_integers_cast() -> None:
    np.testing.assert_allclose(as_float(jnp.array([0, 255], jnp.uint8)), [0.0, 1.0])
    for array in (jnp.array([7]), jnp.array([7.0]), jnp.array([7], jnp.int16), np.array([7.0])):
        result = as_float(array)
        assert result.dtype == jnp.float32
        assert result == 7.0
    assert as_float(jnp.array(True)) == 1.0


@pytest.mark.parametrize(
    ("shape", "observation_ndim", "input_ndim", "expected"),
    [
        ((4, 3), 1, 1, (4, 3)),
        ((3,), 1, 1, (3,)),
        ((2, 4, 5, 6), 2, 1, (2, 4, 30)),
        ((4,), 0, 1, (4, 1)),
        ((2, 8, 8, 3), 3, 3, (2, 8, 8, 3)),
        ((2, 8, 8, 3), 3, 1, (2, 192)),
    ],
)
def test_each_observation_gets_the_rank_of_the_torso(shape, observation_ndim, input_ndim, expected) -> None:
    assert network_input(jnp.zeros(shape), observation_ndim, input_ndim).shape == expected


def test_what_no_network_takes_is_refused() -> None:
    with pytest.raises(ValueError, match="got a dict with privileged, state: select an entry"):
        network_input(OBS, 1, 1)
    with pytest.raises(ValueError, match="expects observations with 3 axes, got 1"):
        network_input(jnp.zeros((4, 3)), 1, 3)
    with pytest.raises(ValueError, match="an observation with 2 axes"):
        network_input(jnp.zeros(4), 2, 1)
