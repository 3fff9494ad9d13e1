"""Jobs of Hydra: composes the settings of a command line and calls a function with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from evorl.cli.arguments import check_overrides
from evorl.cli.composition import complete_what_hydra_reads
from evorl.cli.config_tree import config_folder
from evorl.runs.spec import RunSpec


def with_hydra(arguments: Sequence[str], job: Callable[[DictConfig], Any]) -> None:
    """Call ``job`` with the config that Hydra composes for this command line."""
    complete_what_hydra_reads()
    sys.argv[1:] = arguments
    hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(job)()


def compose_quietly(arguments: Sequence[str], task: Callable[[RunSpec], None]) -> None:
    """Call ``task`` with the composed settings, and raise its errors without the lines that Hydra would print."""
    raised: list[Exception] = []

    def job(config: DictConfig) -> None:
        try:
            task(RunSpec.from_config(config))
        except Exception as error:
            raised.append(error)

    with_hydra(arguments, job)
    if raised:
        raise raised[0]


def compose_checked(arguments: Sequence[str], task: Callable[[RunSpec], None]) -> None:
    """Check the overrides, then call ``task`` as ``compose_quietly`` does."""

    def checked(spec: RunSpec) -> None:
        check_overrides(*job_overrides())
        task(spec)

    compose_quietly(arguments, checked)


def job_overrides() -> tuple[list[str], list[Path]]:
    """Return the overrides of this job, and the config folders."""
    hydra_config = HydraConfig.get()
    folders = [Path(source.path) for source in hydra_config.runtime.config_sources if source.schema == "file"]
    return list(hydra_config.overrides.task), folders
