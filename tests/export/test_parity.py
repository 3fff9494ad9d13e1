"""Agreement of a file with the policy is measured along episodes, and differences are detected."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evorl.export.parity import Parity, ParityError, compared, drawn_observations, parity_of, recorded_steps
from tests.support.errors import raises_naming
from tests.support.portable import numpy_step, stored


def test_a_difference_in_memory_is_seen(tmp_path: Path) -> None:
    policy = stored("r2d2", tmp_path).policy
    recorded = recorded_steps(policy, num_rows=5, num_steps=4)
    step = numpy_step(policy)
    assert compared(policy, step, recorded).is_close

    def forgets(inputs: dict) -> dict:
        return {name: np.zeros_like(x) if name.startswith("next_") else x for name, x in step(inputs).items()}

    parity = compared(policy, forgets, recorded)
    assert (parity.num_observations, parity.is_close) == (20, False)
    assert parity.difference > 1e-3


def test_an_action_that_differs_is_counted(tmp_path: Path) -> None:
    policy = stored("dqn", tmp_path).policy
    recorded = recorded_steps(policy, num_rows=4, num_steps=1)
    (outputs,) = recorded.outputs
    other = outputs | {"action": outputs["action"] ^ np.array([1, 0, 0, 0], np.int32)}
    parity = parity_of(policy, [other], recorded)
    assert parity == Parity(4, 0.0, 3)
    assert not parity.is_close
    assert parity.describe() == "differs from JAX by at most 0.0e+00 over 4 observations, 3 of 4 actions the same"
    with raises_naming(ParityError, "action_scores", "(4, 1)", "(4, 2)"):
        parity_of(policy, [outputs | {"action_scores": outputs["action_scores"][:, :1]}], recorded)


def test_infinities_are_compared(tmp_path: Path) -> None:
    policy = stored("masked", tmp_path).policy
    recorded = recorded_steps(policy, num_rows=8, num_steps=1)
    (output,) = recorded.outputs
    assert parity_of(policy, [output], recorded).is_close
    finite = output | {"action_scores": np.nan_to_num(output["action_scores"], neginf=-1e3)}
    assert parity_of(policy, [finite], recorded).difference == float("inf")


def test_observations_are_of_their_spaces(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = drawn_observations(stored("dqn_convolutional", tmp_path).policy, rng, 50)["obs"]
    assert pixels.shape == (50, 10, 10, 4)
    cartpole = drawn_observations(stored("dqn", tmp_path).policy, rng, 500)["obs"]
    assert np.abs(cartpole[:, 1]).max() < 10.0  # bound of 1e38
    assert np.abs(cartpole[:, 2]).max() <= 0.42
    like_seen = drawn_observations(stored("ppo_normalized", tmp_path).policy, rng, 500)["obs"]
    np.testing.assert_array_equal(like_seen <= np.array([1.0, 1.0, 8.0]), True)
    assert like_seen[:, 2].mean() > 1.5
