"""Ray actors produce the numbers of a single process, also after one of them was killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from evorl.actors.ray_pool import RayPool
from evorl.actors.worker import Worker
from evorl.config import gate
from evorl.execution.collector import iterate
from tests.actors.test_actor_loop import after, build
from tests.support.errors import assert_names
from tests.support.small_workflows import assert_close


# Ray forks next to JAX's threads, leaves sockets and files to the garbage collector, and announces changes.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_ray_gives_the_same_numbers_and_replaces_what_was_killed() -> None:
    ray = pytest.importorskip("ray", reason="install the extra ray")
    expected = after(build("ppo", None), 2)
    workflow = build("ppo", {"kind": "ray", "count": 2})
    messages: list[str] = []
    state = iterate(workflow, workflow.init(7), 2, messages.append)[1]
    assert_close(state.agent_state.params, expected.agent_state.params, 1e-5)
    pool = workflow.execution.collector._supervisor._pool  # pyright: ignore[reportOptionalMemberAccess]  # of Ray
    os.kill(ray.get(pool._actors[1].process_id.remote()), signal.SIGKILL)
    iterate(workflow, state, 2, messages.append)
    (text,) = messages
    assert_names(text, "actor 1", "replaced", "unfinished episodes")
    workflow.close()
    assert not ray.is_initialized()


def test_all_finished_requests_are_received_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise actors that finished while the learner did other work would count as too late."""
    pool = RayPool.__new__(RayPool)
    pool._pending, pool._seen_at = {f"request {i}": i for i in range(4)}, dict.fromkeys(range(4), 0.0)

    def wait(references: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        ready = [reference for reference in references if reference != "request 1"][:num_returns]
        return ready, [reference for reference in references if reference not in ready]

    errors = SimpleNamespace(RayActorError=KeyError, RayTaskError=IndexError)
    pool._ray = SimpleNamespace(wait=wait, get=lambda reference: ("done", reference), exceptions=errors)
    assert sorted(pool.answers(1.0)) == [(i, "done", f"request {i}") for i in (0, 2, 3)]
    assert pool.answers(1.0) == []
    assert list(pool._pending.values()) == [1]


@pytest.mark.parametrize("is_restricted", [False, True])
def test_ray_is_not_started_in_the_folder_of_a_stranger(
    is_restricted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray starts outside of an untrusted working directory, from which its workers would import modules."""
    ray = pytest.importorskip("ray", reason="install the extra ray")
    from evorl.actors.ray_pool import RayPool

    started_in: list[Path] = []
    monkeypatch.setattr(ray, "init", lambda **_: started_in.append(Path.cwd()))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    with gate.scope():
        if is_restricted:
            gate.distrust("a test")
        RayPool(Worker, dict).close()
    assert (started_in == [tmp_path]) is not is_restricted
    assert len(started_in) == 1
    assert Path.cwd() == tmp_path
