"""Entry points of the scripts, ``evorl-train`` and similar programs: each runs the command in its name."""

from __future__ import annotations

from evorl.cli import commands


def train() -> None:
    """Run ``train.py``: train with the composed config; ``resume=<run folder>|latest`` continues a run."""
    commands.main("train")


def evaluate() -> None:
    """Run ``evaluate.py run=<run folder>|latest``: play ``eval_episodes`` episodes with the best checkpoint."""
    commands.main("evaluate")


def save_replay() -> None:
    """Run ``save_replay.py run=<run folder>|latest``: write the replay buffer of the last checkpoint to a file."""
    commands.main("save-replay")


def show_episode() -> None:
    """Run ``show_episode.py episode=<file>``, or ``run=<run folder>|latest``: draw a saved episode as a GIF."""
    commands.main("show-episode")
