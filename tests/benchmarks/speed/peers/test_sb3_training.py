"""Training that advances by the library's steps."""

from __future__ import annotations

import types

import pytest

from benchmarks.speed.peers import sb3_training


class Model:
    """Stand-in that takes whole rollouts of 8 steps, as the library's algorithms do."""

    def __init__(self, policy, envs, seed, gamma, device="gpu"):
        self.made_with = (policy, envs, seed, gamma, device)
        self.num_timesteps = 0

    def learn(self, steps, reset_num_timesteps):
        if reset_num_timesteps:
            self.num_timesteps = 0
        self.num_timesteps += -(-steps // 8) * 8


@pytest.mark.parametrize(("library", "device"), [("stable_baselines3", "cpu"), ("sbx", "gpu")])
def test_a_training_goes_on_and_tells_its_steps(library, device, monkeypatch):
    module = types.SimpleNamespace(__name__=library, Chosen=Model)
    monkeypatch.setattr(sb3_training.importlib, "import_module", {library: module}.__getitem__)
    monkeypatch.setattr(sb3_training, "make_envs", lambda settings: "envs")
    settings = {"library": library, "algorithm": "Chosen", "config": {"gamma": 0.5}, "warmup_steps": 3}
    learner = sb3_training.Learner(settings)
    assert learner.model.made_with == ("MlpPolicy", "envs", 0, 0.5, device)
    assert learner.model.num_timesteps == 8
    assert learner.learn(9) == 16
    assert learner.model.num_timesteps == 24
