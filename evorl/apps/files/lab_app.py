"""Simulator for a DeepMind Lab level. Build ``deepmind_lab`` from source: https://github.com/google-deepmind/lab."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from evorl.apps.files.app_frames import small_frame
from evorl.apps.files.app_options import Options, action_number, read_options, stop
from evorl.serving.client import TrainingBase

# Entries: look left/right, look up/down (pixels per frame), strafe, move, fire, jump, crouch.
ACTIONS = {
    "look_left": (-20, 0, 0, 0, 0, 0, 0),
    "look_right": (20, 0, 0, 0, 0, 0, 0),
    "forward": (0, 0, 0, 1, 0, 0, 0),
    "backward": (0, 0, 0, -1, 0, 0, 0),
    "strafe_left": (0, 0, -1, 0, 0, 0, 0),
    "strafe_right": (0, 0, 1, 0, 0, 0, 0),
    "look_up": (0, 10, 0, 0, 0, 0, 0),
    "look_down": (0, -10, 0, 0, 0, 0, 0),
    "fire": (0, 0, 0, 0, 1, 0, 0),
    "jump": (0, 0, 0, 0, 0, 1, 0),
    "crouch": (0, 0, 0, 0, 0, 0, 1),
}
ACTION_SETS = {"small": 3, "medium": 6, "full": 11}  # number of leading entries of ACTIONS


class LabTraining(TrainingBase):
    """Episodes of a DeepMind Lab level.

    Options in ``app.yaml``, explained there: ``level`` (a level of the package, or the path of your own map),
    ``actions`` (small, medium or full), ``action_repeat``, ``width``, ``height``, ``fps``, ``frames`` and ``seed``.

    Args:
        options: options of the app.
        make_lab: constructor with the signature of ``deepmind_lab.Lab``, which is the default.
    """

    def __init__(self, options: Options, make_lab: Callable[..., Any] | None = None) -> None:
        super().__init__(**options.connection())
        chosen = options.get("environment/actions", "small")
        if chosen not in ACTION_SETS:
            stop(f"environment.actions must be one of {', '.join(ACTION_SETS)}; got {chosen!r}")
        self.actions = [np.array(each, np.intc) for each in list(ACTIONS.values())[: ACTION_SETS[chosen]]]
        action_space = options.get("environment/action_space", {})
        if "n" in action_space and action_space["n"] != len(self.actions):
            stop(
                f"environment.action_space in app.yaml is {action_space}, but the {chosen} set has {len(self.actions)} "
                "actions: change app.yaml"
            )
        self.repeat = int(options.get("environment/action_repeat", 4))
        self.frames = options.get("environment/frames", {})
        self.seeds = random.Random(options.seed)
        sizes = {name: str(options.get(f"environment/{name}", 84)) for name in ("width", "height")}
        config = {**sizes, "fps": str(options.get("environment/fps", 60))}
        make_lab = _lab() if make_lab is None else make_lab
        self.lab = make_lab(options.get("environment/level", "tests/empty_room_test"), ["RGB_INTERLEAVED"], config)

    def episode(self, number: int) -> float:
        """Play one episode and return the sum of rewards. The terminal state has no observation."""
        self.lab.reset(seed=self.seeds.randrange(2**31))
        total = 0.0
        action = self.agent.update(None, self.screen(), False)
        while True:
            chosen = self.actions[action_number(action, len(self.actions))]
            reward = float(self.lab.step(chosen, num_steps=self.repeat))
            total += reward
            if not self.lab.is_running():
                self.agent.update(reward, None, True)
                return total
            action = self.agent.update(reward, self.screen(), False)

    def screen(self) -> np.ndarray:
        """Return the observation: the preprocessed screen."""
        return small_frame(self.lab.observations()["RGB_INTERLEAVED"], **self.frames)


def _lab() -> Callable[..., Any]:
    try:
        return importlib.import_module("deepmind_lab").Lab
    except ImportError:
        stop(
            "DeepMind Lab is not installed, and no package index has it: build its wheel as described "
            "in https://github.com/google-deepmind/lab (docs/users/build.md), then pip install deepmind_lab-*.whl"
        )


if __name__ == "__main__":
    LabTraining(read_options()).run()
