"""Saves evaluation episodes step by step, one pair of files each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.episodes.saved_episode import SavedEpisode
from evorl.metrics import EvaluationMetrics
from evorl.ops.trees import named_leaves
from evorl.runs.recorder import Recorder, RunPlan

_STEPS = re.compile(r"(\d{12})[_.]")


class EpisodeRecorder(Recorder):
    """Writes ``<steps>_<episode>.npz`` and ``.json`` (12 and 3 digits); with seeds ``<steps>_seed_<i>_<episode>``.

    Args:
        folder: output folder; created when the first episode is written.
        about: common entries of every description: ``env``, the config of the environment, and others.
        num_episodes: number of episodes saved per evaluation and seed, starting with the first.
        suffix: appended to the number of steps in file names, for evaluations outside of training.

    Raises:
        RunFolderError: the folder cannot be written (raised by ``evaluation``).
    """

    def __init__(self, folder: Path | str, about: Mapping[str, Any], num_episodes: int, suffix: str = "") -> None:
        self.folder, self._about, self._num_episodes, self._suffix = Path(folder), about, num_episodes, suffix

    def start(self, plan: RunPlan) -> None:
        forget_later_files(self.folder, plan.first_timesteps)

    def evaluation(self, iterations: int, timesteps: int, episodes: EvaluationMetrics) -> None:
        for seed, number, episode in recorded_episodes(episodes, self._num_episodes):
            seed_part = "" if seed is None else f"_seed_{seed}"
            about = {
                **self._about,
                "iterations": iterations,
                "timesteps": timesteps,
                "episode": number,
                **({} if seed is None else {"seed_index": seed}),
                **episode.about,
            }
            name = f"{timesteps:012d}{self._suffix}{seed_part}_{number:03d}"
            SavedEpisode(about, episode.arrays).save(self.folder / name)


def recorded_episodes(episodes: EvaluationMetrics, num_episodes: int) -> Iterator[tuple[int | None, int, SavedEpisode]]:
    """Yield seed index, episode index and ``SavedEpisode`` of the first ``num_episodes`` recorded episodes per seed.

    The seed index is ``None`` if the evaluation has no seed axis. Without recorded steps, yield nothing.
    """
    if episodes.steps is None:
        return
    if np.ndim(episodes.episode_returns) == 2:
        for seed in range(len(episodes.episode_returns)):
            seed_part = jax.tree.map(lambda x, seed=seed: x[seed], episodes)
            yield from ((seed, number, episode) for _, number, episode in recorded_episodes(seed_part, num_episodes))
        return
    for number in range(min(num_episodes, len(episodes.steps.rewards))):
        length = int(episodes.episode_lengths[number])
        steps = jax.tree.map(lambda x, number=number: np.asarray(x[number]), episodes.steps)
        physics = steps.physics.items()  # uint8 arrays contain the bytes of float64
        physics = {k: np.ascontiguousarray(x).view(float) if x.dtype == np.uint8 else x for k, x in physics}
        per_state = {"obs": steps.obs, **physics}
        per_step = {"action": steps.actions, "reward": steps.rewards, "termination": steps.terminations}
        if steps.is_success is not None:
            per_step["success"] = steps.is_success
        arrays = {name: x[: length + 1] for name, x in named_leaves(per_state).items()}
        arrays |= {name: x[:length] for name, x in named_leaves(per_step).items()}
        about = {"length": length, "return": float(episodes.episode_returns[number])}
        for name, flags in (("success", episodes.success_at_end), ("success_ever", episodes.success_ever)):
            if flags is not None:
                about[name] = bool(flags[number])
        yield None, number, SavedEpisode(about, arrays)


def forget_later_files(folder: Path, timesteps: int) -> None:
    """Remove the files in ``folder`` of evaluations after ``timesteps``, which a resumed run writes again."""
    for path in sorted(folder.glob("[0-9]*")) if folder.is_dir() else ():
        match = _STEPS.match(path.name)
        if match and int(match[1]) > timesteps:
            path.unlink()
