"""The NumPy file as its users call it: single observations and batches, memory, spaces of several entries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evorl.export.artifacts import policy_graph
from evorl.export.numpy_file import numpy_text
from evorl.export.stored_policy import LoadedPolicy
from tests.support.errors import raises_naming
from tests.support.portable import VERSIONS, stored


def module_of(name: str, folder: Path, sample: bool = False) -> tuple[dict[str, Any], str]:
    policy = stored(name, folder, sample).policy
    text = numpy_text(policy, policy_graph(policy), {**VERSIONS, **policy.describe()}, "A policy.")
    module: dict[str, Any] = {}
    exec(text, module)
    return module, text


@pytest.mark.parametrize(
    "name", ["ppo_gru_history", "ppo_lru", "ppo_gtrxl", "recurrent_sac", "ppo_min_gru", "masked", "goals", "dqn"]
)
def test_it_acts_as_the_loaded_policy(name: str, tmp_path: Path) -> None:
    module, text = module_of(name, tmp_path)
    stated = stored(name, tmp_path).policy
    assert re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE) == "base64 hashlib json math numpy".split()
    theirs, ours = module["Policy"](), LoadedPolicy(stated)
    rng = np.random.default_rng(0)
    for _ in range(3):
        obs = {port.name: rng.random((4, *port.shape)).astype(port.dtype) for port in stated.observations}
        given: Any = {key.removeprefix("obs_"): x for key, x in obs.items()} if len(obs) > 1 else obs["obs"]
        np.testing.assert_allclose(theirs(given), ours(given), atol=1e-5)
    theirs.reset()
    single = {key: x[0] for key, x in given.items()} if isinstance(given, dict) else given[0]
    ours.reset()
    action = theirs(single)
    np.testing.assert_allclose(action, ours(single), atol=1e-5)
    assert np.shape(action) == np.shape(stated.action_space.zeros())


def test_its_draws_follow_a_seed(tmp_path: Path) -> None:
    module, _ = module_of("ppo_discrete", tmp_path, sample=True)
    obs = np.zeros((500, 4))
    first, again, other = (module["Policy"](seed)(obs) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert 100 < np.sum(first != other) < 400
    assert 0.3 < first.mean() < 0.7


def test_damaged_numbers_are_refused(tmp_path: Path) -> None:
    _, text = module_of("dqn", tmp_path)
    start = text.index('"""\n', text.index("W = _arrays(")) + 4
    damaged = text[:start] + ("B" if text[start] == "A" else "A") + text[start + 1 :]
    with raises_naming(ValueError, "corrupted", "export"):
        exec(damaged, {})


@pytest.mark.parametrize("shape", [(1,), (4, 1), (2, 3, 4), (3,), ()])
def test_observations_of_another_shape_are_an_error(shape: tuple[int, ...], tmp_path: Path) -> None:
    module, _ = module_of("ppo_discrete", tmp_path)
    with raises_naming(ValueError, "obs has the shape", "one observation or a batch"):
        module["Policy"]()(np.zeros(shape))


def test_a_batch_of_another_size_needs_a_reset(tmp_path: Path) -> None:
    module, _ = module_of("ppo_gru_history", tmp_path)
    policy, obs = module["Policy"](), np.zeros((3, 3), np.float32)
    policy(obs[0])
    with raises_naming(ValueError, "memory", "reset()"):
        policy(obs)
    policy.reset()
    with raises_naming(ValueError, "obs has the shape (4, 1)"):
        policy(np.zeros((4, 1)))
    assert len(policy(obs)) == 3, "a rejected observation leaves no memory"


@pytest.mark.parametrize(
    ("entry", "value"),
    [("kind", 0), ("kind", 4), ("kind", 1.5), ("kind", np.nan), ("grid", -3), ("eye", 0.5), ("eye", 300), ("eye", -1)],
)
def test_an_observation_that_its_space_or_dtype_lacks_is_an_error(entry: str, value: float, tmp_path: Path) -> None:
    module, _ = module_of("choices", tmp_path)
    valid = {"kind": 1, "grid": [[0, -2], [4, 0]], "eye": np.full((2, 2), 255.0)}  # whole floats can be converted
    wrong = valid | {entry: np.full(np.shape(valid[entry]), value)}
    for policy in (module["Policy"](), LoadedPolicy(stored("choices", tmp_path).policy)):
        policy(valid)
        with raises_naming(ValueError, f"obs_{entry}", str(value)):
            policy(wrong)
