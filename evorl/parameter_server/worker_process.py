"""Worker of a parameter server: checks the config sent by the server and trains with it.

The config is read as data. Names of code outside this package are rejected unless the user trusts the server.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

from evorl.assembly import workflow_from_config
from evorl.config.command_lines import as_arguments
from evorl.config.nodes import node_from_config
from evorl.config.values import checked_mapping, checked_value
from evorl.parameter_server.service import shared_limits
from evorl.parameter_server.training import WorkerResult, work
from evorl.parameter_server.worker import check_supported
from evorl.runs.spec import RunSpec
from evorl.runs.trust import foreign_names
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.training_server import TrainingServer


def work_for(spec: RunSpec, address: str, serve: Any, **settings: Any) -> WorkerResult:
    """Run ``work(**settings)`` for a server's run; ``serve`` sets up a ``TrainingServer`` if ``env=remote``."""
    settings["seed"] = spec.seed
    workflow = workflow_from_config(spec.workflow_config())
    check_supported(workflow)
    if not workflow.env.is_remote:
        if serve:
            raise ValueError(
                f"serve applies only to simulators that connect over the network, but the run at {address} uses "
                f"{workflow.env.title or spec.workflow['env']}: remove serve, or start that run with env=remote."
            )
        return work(workflow, address, **settings)
    # The address comes from the worker's options, never from the server's config.
    limits = shared_limits(checked_mapping(spec.serve, "serve")) | dict(checked_mapping(serve, "serve"))
    serving = node_from_config(ServeSettings, limits, "serve")
    with contextlib.closing(TrainingServer(workflow, serving)) as collector:
        return work(workflow, address, collector=collector, message=functools.partial(print, flush=True), **settings)


def check_worker_config(config: Mapping[str, Any], address: str, trust: Any) -> None:
    """Check the ``config`` received from the server at ``address``; ``trust`` allows code outside evorl.

    Raises:
        ValueError: the config is incomplete, has interpolations, or names code outside evorl and ``trust`` is false.
    """
    checked_value(trust, bool, "trust")
    if missing := [name for name in ("workflow", "env") if name not in config]:
        names = " and no ".join(missing)
        raise ValueError(f"the config of the server at {address} has no {names}: check the address and the server.")
    if "${" in repr(config):
        raise ValueError(
            f"the config of the server at {address} has interpolations (${{...}}): resolve them on the server."
        )
    if not trust and (names := foreign_names(config)):
        raise ValueError(
            f"the server at {address} would run code outside evorl on this machine: {as_arguments(names)}. "
            "If you trust its operator, set trust=true."
        )
