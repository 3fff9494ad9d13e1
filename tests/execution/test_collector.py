"""All collectors have one interface, and the settings of a workflow select its collector."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from evorl.actors.actor_loop import Actors
from evorl.actors.actor_settings import ActorSettings
from evorl.actors.host_loop import HOST_LOOP, HostLoop
from evorl.assembly import workflow_from_config
from evorl.execution.collector import PROGRAM, ProgramCollector, iterate
from evorl.execution.trainable import Collector, collected_by
from evorl.runs.spec import RunSpec
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.training_server import TrainingServer
from tests.support.scripted_simulator import DISCRETE, remote

METHODS = [name for name, value in vars(Collector).items() if inspect.isfunction(value) and not name.startswith("_")]
CONFIG = {
    "workflow": "evorl.algorithms.a2c.A2CWorkflow",
    "env": {"name": "gymnax/CartPole-v1"},
    "num_envs": 4,
    "agent": {"network": {"torso": [8]}},
}
HOST = {"library": "host", "name": "inverted_pendulum"}


def server() -> TrainingServer:
    return TrainingServer(remote("ppo", DISCRETE, {"num_envs": 2}), ServeSettings(bind="127.0.0.1:0"))


def collectors() -> list[Collector]:
    """Return one collector of each kind."""
    actors = [Actors(ActorSettings(count=1, kind=kind), RunSpec()) for kind in ("process", "ray")]
    return [PROGRAM, HOST_LOOP, *actors, server()]


def test_only_a_program_is_one_program() -> None:
    assert [collector.is_one_program for collector in collectors()] == [True, False, False, False, False]


@pytest.mark.parametrize("kind", [ProgramCollector, HostLoop, Actors, TrainingServer])
def test_every_collector_takes_what_the_protocol_says(kind: type) -> None:
    assert {"check", "iterate", "evaluate", "stop_when", "close"} <= set(METHODS)
    for name in METHODS:
        expected = list(inspect.signature(getattr(Collector, name)).parameters)
        given = inspect.signature(getattr(kind, name)).parameters
        assert list(given)[: len(expected)] == expected, name
        assert all(given[more].default is not inspect.Parameter.empty for more in list(given)[len(expected) :]), name


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, ProgramCollector),
        ({"env": HOST | {"host": "callback"}}, ProgramCollector),
        ({"env": HOST | {"host": "loop"}}, HostLoop),
        ({"env": HOST | {"host": "loop"}, "actors": {"count": 2}}, Actors),
        ({"actors": {"count": 2, "kind": "inline"}}, Actors),
    ],
)
def test_a_workflow_has_the_collector_of_its_settings(changes: dict[str, Any], kind: type) -> None:
    workflow = workflow_from_config({**CONFIG, **changes})
    try:
        assert type(workflow.collector) is kind
    finally:
        workflow.close()


def test_a_training_server_polls_the_last_function_it_was_given() -> None:
    serving, calls = server(), []
    workflow = collected_by(remote("ppo", DISCRETE, {"num_envs": 2}), serving)
    try:
        assert workflow.collector is serving
        workflow.collector.stop_when(lambda: calls.append(1) or True)
        metrics, _ = iterate(workflow, workflow.init(0), 3)
        assert metrics is None  # no client connected
        assert calls
    finally:
        workflow.close()
