"""Types of the options that commands accept as keyword arguments in Python; ``evorl.cli.options`` describes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict


class PolicyOptions(TypedDict, total=False):
    """Options that choose a policy of a run: its checkpoint, seed and sampling."""

    runs_folder: str | Path
    checkpoint: str | int
    sample: bool
    seed_number: int | str
    trust: bool


class RenderOptions(TypedDict, total=False):
    """Options of ``evorl.render``."""

    runs_folder: str | Path
    episodes: int
    format: Literal["webp", "gif", "png", "mp4", "html"]
    to: str | Path | None
    frames: int
    steps: int | None
    fps: float
    size: int
    checkpoint: str | int
    cells: int | Sequence[int] | None
    seed: int | None
    seed_number: int | str
    trust: bool


class ReportOptions(TypedDict, total=False):
    """Options of ``evorl.report``."""

    to: str | Path | None
    by: str | None
    metric: str | None
    csv: str | Path | bool | None
    title: str | None
    pictures: bool
    algorithm: str | None
    env: str | None
    state: Literal["running", "stopped", "finished", "failed"] | None
    runs_folder: str | Path


class ExportOptions(PolicyOptions, total=False):
    """Options of ``evorl.export_policy`` in addition to the format."""

    to: str | Path | None


class PackOptions(TypedDict, total=False):
    """Options of ``evorl.pack``."""

    to: str | Path | None
    license: str | None
    runs_folder: str | Path
    checkpoint: str | int
    trust: bool


class PlayOptions(PolicyOptions, total=False):
    """Options of ``evorl.play``."""

    env: str | None
    episodes: int
    seed: int
    max_steps: int
    to: str | Path | None
    screen: bool
    frames: int
    fps: float


class CheckEnvOptions(TypedDict, total=False):
    """Options of ``evorl.check_env`` in addition to the arguments of the environment."""

    steps: int
    num_envs: int
    max_episode_steps: int | None
    seed: int
