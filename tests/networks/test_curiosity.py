"""Models of intrinsic rewards: shapes and parameters."""

from __future__ import annotations

import jax
import numpy as np

from evorl.networks.curiosity import CuriosityModel, DistillationNetwork
from evorl.networks.torsos import build_torso


def test_the_curiosity_module_reads_images_and_any_leading_axes() -> None:
    torso = build_torso({"torso": [{"conv": {"filters": 2, "stride": 2}}, "flatten"], "activation": "elu"})
    model = CuriosityModel(torso, num_outputs=3, hidden=5, observation_ndim=3)
    obs, actions = np.ones((4, 2, 6, 6, 1), np.float32), np.zeros((4, 2, 3), np.float32)
    init = jax.jit(model.init_with_output)
    (predicted, came, inverse), variables = init(jax.random.key(0), obs, actions, obs)
    assert predicted.shape == came.shape == (4, 2, 3 * 3 * 2)
    assert inverse.shape == (4, 2, 3)
    assert variables["params"]["forward_model"]["Dense_0"]["kernel"].shape == (18 + 3, 5)
    # Observation and next observation share weights.
    assert set(variables["params"]) == {
        "torso", "forward_model", "forward_output", "inverse_model", "inverse_output"
    }  # fmt: skip


def test_a_predictor_has_more_layers_than_its_target() -> None:
    torso = build_torso({"torso": [8]})
    predictor = DistillationNetwork(torso, size=7, hidden=(9,))
    target = predictor.clone(hidden=())
    obs = np.ones((3, 4), np.float32)
    made = [jax.jit(module.init_with_output)(jax.random.key(0), obs) for module in (predictor, target)]
    assert made[0][0].shape == (3, 7)
    sizes = [sum(np.size(x) for x in jax.tree.leaves(variables)) for _, variables in made]
    assert sizes == [8 * 5 + 9 * 9 + 7 * 10, 8 * 5 + 7 * 9]
