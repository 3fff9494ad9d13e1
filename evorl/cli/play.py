"""``evorl play``: plays a Gymnasium environment with a run's policy, as an animation or in a window."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evorl.cli.command_options import read_options
from evorl.cli.export import policy_of
from evorl.cli.options import PLAY
from evorl.cli.render import MAX_PICTURE_BYTES
from evorl.config.gate import scope
from evorl.envs.mujoco_frames import draw_without_screen
from evorl.export.play import check_fits, environment_of, play_episode, simulators_of
from evorl.export.stored_policy import LoadedPolicy, StoredPolicy
from evorl.rendering.animation import checked_path, frame_numbers, write_animation


@scope()
def play_from_arguments(arguments: Sequence[str]) -> Path | None:
    """Play episodes in a window, or write an animation and return its path; print their lengths and returns."""
    settings, _ = read_options(arguments, PLAY, "evorl play")
    on_screen = settings["screen"]
    if settings["to"]:
        checked_path(settings["to"])
    if not on_screen:
        draw_without_screen()  # before anything else imports MuJoCo
        for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):  # for Pygame, which Gymnasium renders with
            os.environ.setdefault(name, "dummy")
    stored = policy_of(settings, "play")

    name, options = environment_of(stored, settings["env"])
    simulators = simulators_of(name, options, "human" if on_screen else "rgb_array")
    try:
        check_fits(stored, simulators, name)
        policy = LoadedPolicy(stored.policy, settings["seed"])
        frames = _Frames(settings["frames"])
        for number in range(settings["episodes"]):
            recorded = None if on_screen else frames
            length, total = play_episode(policy, simulators, settings["seed"] + number, settings["max_steps"], recorded)
            print(f"episode {number + 1}: {length} steps, return {total:.2f}")
        return None if on_screen else _write(stored, name, frames, settings)
    finally:
        simulators.close()


class _Frames(list[np.ndarray]):
    """Every ``stride``-th appended image; beyond ``needed`` images and ``MAX_PICTURE_BYTES``, the stride doubles."""

    def __init__(self, needed: int) -> None:
        self.appended, self.stride, self._needed = 0, 1, needed

    def append(self, frame: np.ndarray) -> None:
        """Append an image, uint8 ``[height, width, 3]``."""
        if self.appended % self.stride == 0:
            super().append(frame)
        self.appended += 1
        if len(self) >= 2 * self._needed and len(self) * frame.nbytes > MAX_PICTURE_BYTES:
            del self[1::2]
            self.stride *= 2


def _write(stored: StoredPolicy, name: str, frames: _Frames, settings: dict[str, Any]) -> Path:
    plain = name.replace("/", "-").replace(":", "-")
    path = Path(settings["to"] or stored.folder / "play" / f"{plain}_{settings['seed']}.gif")
    numbers = frame_numbers(len(frames), settings["frames"])
    seconds = frames.appended / len(numbers) / settings["fps"]
    write_animation(path, np.stack([frames[i] for i in numbers]), seconds)
    print(f"{len(numbers)} frames: {path}")
    return path
