from __future__ import annotations

import pytest

from evorl.networks import CNN, MLP, build_torso


def test_mappings_become_modules_compared_by_value() -> None:
    config = {"hidden_sizes": [64, 32], "activation": "swish", "layer_norm": True, "orthogonal": False}
    assert build_torso(config) == MLP((64, 32), "swish", True, False)
    assert build_torso({"type": "mlp", **config}) == build_torso(config)
    cnn = build_torso({"type": "cnn", "channels": [4], "kernel_sizes": [3], "strides": [1]})
    assert cnn == CNN(channels=(4,), kernel_sizes=(3,), strides=(1,))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "mpl"}, r"no torso 'mpl'\. Did you mean 'mlp'\?"),
        ({"hiden_sizes": [4]}, r"a mlp torso has no 'hiden_sizes'\. Did you mean 'hidden_sizes'\?"),
        ({"hidden_sizes": [4], "name": "x"}, "has no 'name'"),
        ({"hidden_sizes": [4, 0]}, r"hidden_sizes must be positive integers, got \[4, 0\]"),
        ({"hidden_sizes": [4.5]}, "positive integers"),
        ({"hidden_sizes": 64}, r"hidden_sizes must be a list of positive integers, as in \[64, 64\]; got 64"),
        ({"hidden_sizes": [4], "layer_norm": "no"}, "layer_norm must be true or false, got 'no'"),
        ({"hidden_sizes": [4], "activation": "rellu"}, "Did you mean 'relu'"),
    ],
)
def test_nonsense_is_refused_with_the_nearest_name(config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_torso(config)
