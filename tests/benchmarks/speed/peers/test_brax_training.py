"""Training that advances by one epoch at a time."""

from __future__ import annotations

import pytest

from benchmarks.speed.peers import brax_training


def test_every_measurement_is_one_epoch(monkeypatch):
    epochs_done = []

    def train(config, steps, num_epochs, after_epoch):
        for number in range(num_epochs):
            epochs_done.append((config, steps, number))
            after_epoch()

    monkeypatch.setattr(brax_training, "train", train)
    epochs = brax_training.Epochs({"config": "settings", "steps": 8})
    assert epochs_done == [("settings", 8, 0)]
    epochs.run()
    epochs.run()
    assert epochs_done == [("settings", 8, number) for number in range(3)]


def test_a_training_that_fails_is_told(monkeypatch):
    def train(config, steps, num_epochs, after_epoch):
        after_epoch()
        raise ValueError("no such environment")

    monkeypatch.setattr(brax_training, "train", train)
    epochs = brax_training.Epochs({"config": "settings", "steps": 8})
    with pytest.raises(RuntimeError, match="training ended") as raised:
        epochs.run()
    assert "no such environment" in str(raised.value.__cause__)
