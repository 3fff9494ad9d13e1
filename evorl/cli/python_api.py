"""Python functions for the commands: train, render, report, export and pack, with the arguments of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict

from evorl.cli.arguments import check_overrides, overrides_first
from evorl.cli.commands import run
from evorl.cli.composition import initialize_configs
from evorl.cli.config_tree import config_folder
from evorl.cli.errors import describe_config_error, is_of_config
from evorl.cli.overrides import names_a_run, stored_run_settings
from evorl.cli.training import train_run
from evorl.config.command_lines import as_override
from evorl.runs.spec import RunSpec
from evorl.training.start import Trained


def train(*overrides: str, **settings: Any) -> Path:
    """Train in a run folder, as ``evorl train`` does; a notebook shows the progress below the cell.

    ``evorl.train("agent=sac", "env=pendulum", num_seeds=3)`` is ``evorl train agent=sac env=pendulum num_seeds=3``.
    Sweeps, searches, ``init_from`` and ``resume`` use the same arguments. Ctrl-C and a notebook's stop button save the
    run, which can then be resumed.

    Args:
        overrides: overrides as on the command line, such as ``"agent.clip_epsilon=0.1"``.
        settings: top-level settings as Python values, such as ``sweep={"discount": [0.9, 0.99]}``.

    Returns:
        The folder of the run, or of the sweep.

    Raises:
        ValueError: a setting is unknown or invalid.
        TrainingDiverged: the training diverged.
    """
    arguments = overrides_first([*overrides, *as_overrides(settings)])
    for argument in arguments:
        if argument.startswith("-") or not argument.partition("=")[0]:
            raise ValueError(
                f"{argument!r} is not a setting: give settings such as evorl.train('agent=sac', 'env=pendulum'). Flags "
                "work only on the command line; instead of -m use a loop, or sweep={...}."
            )
    try:
        trained = _trained(arguments)
    except Exception as error:
        if is_of_config(error):
            raise ValueError(describe_config_error(error, config_folder())) from error
        raise
    if trained.folder is None:
        raise RuntimeError("the training did not report a folder for its results.")
    return trained.folder


def render(**options: Any) -> Path:
    """Render the best policy of a run: ``evorl.render(run=folder, episodes=2)`` is ``evorl render run=... episodes=2``.

    Returns:
        Path of the image, video or page.

    Raises:
        ValueError: an option is unknown or invalid.
        RunFolderError: the run does not exist, or is corrupted.
    """
    return run(["render", *_as_options(options)])


def report(*runs: str | Path, **options: Any) -> Path:
    """Write a report on runs: ``evorl.report("runs", by="agent")`` is ``evorl report runs by=agent``.

    Returns:
        Path of the page.

    Raises:
        ValueError: no run is named, or an option is unknown or invalid.
        RunFolderError: a run does not exist.
    """
    return run(["report", *map(str, runs), *_as_options(options)])


def export_policy(**options: Any) -> list[Path]:
    """Export the policy of a run to files that run without evorl: ``evorl.export_policy(run=folder, format="numpy")``.

    Returns:
        Paths of the files, whose outputs have been compared with the policy.

    Raises:
        ValueError: an option is unknown or invalid.
        RunFolderError: the run does not exist, or is corrupted.
    """
    return [written.path for written in run(["export", *_as_options(options)])]


def pack(**options: Any) -> Path:
    """Pack the policy of a run into one file: ``evorl.pack(run=folder, to="policy.zip")``, as ``evorl pack`` does.

    Returns:
        Path of the file.

    Raises:
        ValueError: an option is unknown or invalid.
        RunFolderError: the run does not exist, or is corrupted.
    """
    return run(["pack", *_as_options(options)])


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Return training settings as overrides: ``["num_seeds=2"]`` for ``{"num_seeds": 2}``."""
    return [f"{name}={as_override(value)}" for name, value in settings.items()]


def _as_options(options: Mapping[str, Any]) -> list[str]:
    """Return options as arguments of a command that composes no config and reads text literally."""
    return [
        f"{name}={value if isinstance(value, str | Path) else as_override(value)}" for name, value in options.items()
    ]


def _trained(arguments: Sequence[str]) -> Trained:
    if names_a_run(arguments, "resume"):
        return train_run(RunSpec(stored=stored_run_settings(arguments)), arguments)
    with _composed(arguments) as spec:
        check_overrides(arguments, [config_folder()])
        return train_run(spec)


@contextmanager
def _composed(arguments: Sequence[str]) -> Iterator[RunSpec]:
    """Compose the settings from overrides; within the context Hydra's global config describes their source files."""
    with initialize_configs():
        config = compose("config", overrides=list(arguments), return_hydra_config=True)
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)
    with open_dict(config):
        del config["hydra"]
    try:
        yield RunSpec.from_config(config)
    finally:
        HydraConfig.instance().cfg = before
