"""Simulator for a ViZDoom scenario, through its Gymnasium environments; observes the preprocessed screen."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any, NoReturn

from evorl.apps.files.app_frames import small_frame
from evorl.apps.files.app_options import Options, action_number, read_options, stop
from evorl.serving.client import TrainingBase


class VizdoomTraining(TrainingBase):
    """Episodes of a ViZDoom scenario.

    Options in ``app.yaml``, below ``environment``: ``name``, ``arguments`` of ``gymnasium.make``, ``frames`` with
    ``size``, ``grey`` and ``crop``, ``seed``.

    Args:
        options: options of the app.
        env: environment to play in; ``None`` creates it from the options.
    """

    def __init__(self, options: Options, env: Any = None) -> None:
        super().__init__(**options.connection())
        self.env = make_env(options) if env is None else env
        self.frames = options.get("environment/frames", {})
        self.seed = options.seed
        action_space = options.get("environment/action_space", {})
        if "n" in action_space and action_space["n"] != self.env.action_space.n:
            stop(
                f"environment.action_space in app.yaml is {action_space}, but the scenario has "
                f"{self.env.action_space.n} actions: change app.yaml"
            )

    def episode(self, number: int) -> float:
        """Play one episode and return the sum of rewards."""
        obs, _ = self.env.reset(seed=self.seed)
        self.seed, total = None, 0.0
        action = self.agent.update(None, self.screen(obs), False)
        while True:
            obs, reward, ended, cut, _ = self.env.step(action_number(action, int(self.env.action_space.n)))
            total += float(reward)
            # The screen of a terminal state is blank, so the last screen is sent only on truncation.
            screen = self.screen(obs) if cut or not ended else None
            action = self.agent.update(float(reward), screen, bool(ended or cut), truncated=bool(cut and not ended))
            if ended or cut:
                return total

    def screen(self, obs: Any) -> Any:
        """Return the observation: the preprocessed screen."""
        return small_frame(obs["screen"] if isinstance(obs, dict) else obs, **self.frames)


def make_env(options: Options) -> Any:
    """Create the scenario named in ``app.yaml``."""
    try:
        import gymnasium

        importlib.import_module("vizdoom.gymnasium_wrapper")  # registers the scenarios
    except ImportError as error:
        stop(f"ViZDoom is not installed ({error}): pip install vizdoom gymnasium")
    shown = {"render_mode": "human"} if options.get("show_ui") else {}
    name = registered_name(options.get("environment/name", "VizdoomBasic-v1"), gymnasium.registry)
    return gymnasium.make(name, **{**options.get("environment/arguments", {}), **shown})


def registered_name(name: str, names: Collection[str]) -> str:
    """Return the name if it is registered, else exit; ViZDoom releases change the version number after ``-v``."""
    if name not in names:
        _refuse(name, names)
    return name


def _refuse(name: str, names: Collection[str]) -> NoReturn:
    versions = sorted(known for known in names if known.rpartition("-v")[0] == name.rpartition("-v")[0])
    others = versions[-1:] or sorted(known for known in names if known.startswith("Vizdoom"))
    advice = f"use {' or '.join(others)}"
    stop(f"environment.name in app.yaml is {name}, which the installed ViZDoom lacks: {advice}")


if __name__ == "__main__":
    VizdoomTraining(read_options()).run()
