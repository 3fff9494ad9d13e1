"""Trainings whose environments are simulators elsewhere: the server that collects, in place of environments here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from evorl.workflows.workflow import Workflow


def with_training_server(workflow: Workflow, config: DictConfig) -> Workflow:
    """The workflow, collecting from simulators elsewhere if its config says so by ``env=remote``.

    Raises:
        ValueError: settings of a server without such an environment, or that cannot be; in words.
    """
    env = config.env
    is_remote = isinstance(env, Mapping) and env.get("library") == "remote"
    if not is_remote:
        if config.get("serve") is not None:
            raise ValueError("serve is for simulators that come over the network: choose env=remote, or leave it out.")
        return workflow
    if workflow.actors is not None:
        raise ValueError(
            "actors step environments of their own, and those of env=remote come by themselves: leave it out."
        )
    from evorl.serving.serve_settings import serve_settings
    from evorl.serving.training_server import TrainingServer

    return workflow.replace(actors=TrainingServer(workflow, serve_settings(config.get("serve") or {})))


def stop_waiting_when(workflow: Workflow, should_stop: Any) -> None:
    """Let a training server that waits for simulators be stopped."""
    if hasattr(workflow.actors, "should_stop"):
        workflow.actors.should_stop = should_stop
