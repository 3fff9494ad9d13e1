"""Entry points of ``scripts/*.py`` and of ``evorl-train`` and similar programs: each runs one ``evorl`` subcommand."""

from __future__ import annotations

from evorl.cli import commands


def train() -> None:
    """Run ``train.py``: train with the config of the command line; ``resume=<run folder>|latest`` resumes a run."""
    commands.main("train")


def evaluate() -> None:
    """Run ``evaluate.py run=<run folder>|latest``: play episodes with the best checkpoint and print the metrics."""
    commands.main("evaluate")


def save_replay() -> None:
    """Run ``save_replay.py run=<run folder>|latest``: write the replay buffer of the last checkpoint to a file."""
    commands.main("save-replay")


def show_episode() -> None:
    """Run ``show_episode.py episode=<file>``, or ``run=<run folder>|latest``: draw a saved episode."""
    commands.main("show-episode")
