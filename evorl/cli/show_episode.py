"""``evorl show-episode``: draws an episode that an evaluation saved, as an animation of MuJoCo bodies or as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evorl.cli.command_options import read_options
from evorl.cli.options import SHOW_EPISODE
from evorl.cli.render import refuse_large_pictures
from evorl.config.command_lines import as_arguments
from evorl.config.gate import distrust, scope
from evorl.envs import create_env
from evorl.envs.mujoco_frames import draw_without_screen
from evorl.episodes.physics import physics_of
from evorl.episodes.saved_episode import SavedEpisode
from evorl.recorders.projection_recorder import draw_episodes
from evorl.rendering.animation import frames_of, write_animation
from evorl.runs.best_run import find_run
from evorl.runs.files import RunFolderError, sibling
from evorl.runs.trust import refuse_foreign_code


@scope()
def show_episode_from_arguments(arguments: Sequence[str]) -> Path:
    """Draw an episode as an animation, or as a PNG plot without MuJoCo positions; print and return the path."""
    settings, _ = read_options(arguments, SHOW_EPISODE, "evorl show-episode")
    if (settings["episode"] is None) == (settings["run"] is None):
        got = "both are" if settings["run"] else "neither is"
        raise ValueError(f"{got} given: set either episode=<file>, or run=<folder>|latest for the run's last episode.")
    refuse_large_pictures(1, settings["frames"], settings["size"])
    draw_without_screen()  # before anything else imports MuJoCo

    path = _path_of(settings)
    episode = SavedEpisode.load(path)
    if not settings["trust"]:
        distrust(f"the config in {path.parent}")
        refuse_foreign_code({"env": episode.about["env"]}, path.parent, can_be_overridden=False)
    env = create_env(dict(episode.about["env"]), parallel=1, autoreset_mode="disabled")
    try:
        is_plot = physics_of(episode) is None
        target = Path(settings["to"] or sibling(path, ".png" if is_plot else ".gif", ".npz", ".json"))
        if is_plot:
            if target.suffix.lower() != ".png":
                raise ValueError(f"to={target} must end in .png: {path.name} has no MuJoCo positions, only a plot.")
            _draw(target, path, episode, env)
        else:
            write_animation(target, frames_of(episode, env, settings["frames"], settings["size"]))
    finally:
        env.close()
    print(f"{path.name}: {episode.about['length']} steps, return {episode.about['return']:.2f}: {target}")
    return target


def _path_of(settings: dict[str, Any]) -> Path:
    if settings["episode"]:
        return Path(settings["episode"])
    folder = find_run(settings["run"], settings["runs_folder"])
    episodes = sorted(folder.episodes.glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    if not episodes:
        raise RunFolderError(
            f"{folder.path} has no saved episodes: evorl evaluate {as_arguments({'run': folder.path})} "
            "evaluation.save_episodes=1 saves one."
        )
    return episodes[-1].with_suffix(".npz")


def _draw(target: Path, file: Path, episode: Any, env: Any) -> None:
    """Plot the first two components of achieved goals or observations; raise ``ValueError`` unless they are vectors."""
    shown = {"obs.achieved_goal": "goal", "obs.observation": "observation", "obs": "observation"}
    name = next((name for name in shown if name in episode.arrays), "obs")
    path, goals = episode.arrays.get(name, np.zeros(0)), episode.arrays.get("obs.desired_goal")
    is_shown = path.ndim == 2 and 0 not in path.shape
    if not is_shown or (shown[name] == "goal" and (goals is None or goals.shape != path.shape)):
        raise ValueError(
            f"{file} cannot be drawn: it has no MuJoCo positions, and its observations are not vectors (or its "
            f"goals differ in shape). Its arrays are {', '.join(episode.arrays)}."
        )
    dimensions = tuple(range(min(2, path.shape[1])))
    draw_episodes(target, [episode], shown[name], dimensions, env, str(episode.about.get("name") or ""))
