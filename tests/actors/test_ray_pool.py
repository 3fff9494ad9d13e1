"""Actors of Ray: the same numbers, also after one was killed."""

from __future__ import annotations

import os
import signal

import pytest

from tests.actors.test_actor_loop import after, build
from tests.conformance.env import assert_trees_equal


# Ray's own: it forks beside JAX's threads, leaves sockets and files to the garbage collector, and announces changes.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_ray_gives_the_same_numbers_and_replaces_what_was_killed() -> None:
    ray = pytest.importorskip("ray", reason="install the extra ray")
    expected = after(build("ppo", None), 2)
    workflow = build("ppo", {"kind": "ray", "count": 2})
    told: list[str] = []
    state = workflow.iterate(workflow.init(7), 2, told.append)[1]
    assert_trees_equal(state.agent_state.params, expected.agent_state.params, 1e-5)
    pool = workflow.actors._supervisor._pool  # pyright: ignore[reportOptionalMemberAccess]
    os.kill(ray.get(pool._actors[1].process_id.remote()), signal.SIGKILL)
    workflow.iterate(state, 2, told.append)
    assert told == ["Actor 1 lost its process: replaced; its running episodes are dropped, nothing else is lost."]
    workflow.close()
    assert not ray.is_initialized()
