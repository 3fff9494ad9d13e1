"""Training runs with remote simulators: a training server collects transitions in place of local environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from evorl.config.command_lines import as_arguments
from evorl.config.nodes import node_from_config
from evorl.execution.trainable import collected_by
from evorl.runs.folder import WITH_PARTS, RunFolder
from evorl.runs.spec import RunSpec
from evorl.serving.client_metrics import ClientMetrics
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.training_server import TrainingServer
from evorl.workflows.workflow import Workflow


def with_training_server(workflow: Workflow, spec: RunSpec) -> Workflow:
    """Return the workflow with a training server that collects from remote simulators.

    Raises:
        ValueError: ``serve`` is invalid, ``actors`` are set, episodes would be recorded or rendered, or remote
            simulators cannot train the workflow.
    """
    if workflow.keeping is not None or spec.render_interval:
        raise ValueError(
            "clients of env=remote play the episodes, so the server cannot save, plot or render them: remove "
            "render_interval, evaluation.save_episodes and evaluation.plot_episodes."
        )
    if workflow.execution.collector is not None:
        raise ValueError(
            "actors step local environments, but simulators of env=remote connect by themselves: remove actors."
        )
    return collected_by(workflow, TrainingServer(workflow, node_from_config(ServeSettings, spec.serve or {}, "serve")))


def refuse_serve_settings() -> None:
    """Raise ``ValueError``, which states that settings of ``serve`` do not apply to training in a local environment."""
    raise ValueError(
        "serve applies only to env=remote, whose simulators connect over the network: use evorl train without settings "
        "of serve to train in this environment, or evorl serve env=remote to wait for simulators."
    )


def refuse_local_run(which: str, runs_folder: str) -> None:
    """Raise ``ValueError`` if the run to resume, ``which`` in ``runs_folder``, was trained in a local environment."""
    folder = RunFolder.find(which, runs_folder, WITH_PARTS)
    env = folder.load_config(trust=True).get("env")
    if not isinstance(env, Mapping) or env.get("library") != "remote":
        raise ValueError(
            f"{folder.path} is a run in a local environment, not with simulators that connect over the network: resume "
            f"it with evorl train {as_arguments({'resume': folder.path})}."
        )


def connect_training_server(
    workflow: Workflow, folder: RunFolder, should_stop: Callable[[], bool], message: Callable[[str], None]
) -> None:
    """Let ``should_stop`` end the server's wait for simulators, and store clients' metrics in the run folder."""
    workflow.collector.stop_when(should_stop)
    server = cast("TrainingServer", workflow.collector)
    server.keep(ClientMetrics(folder.path / "clients"), message)
