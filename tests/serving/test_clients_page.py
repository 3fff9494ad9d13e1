"""The clients page is correct: its programs connect to a server, and its table matches the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.serving import rlx
from tests.support.doc_pages import ROOT, Block, blocks
from tests.support.node import run_node
from tests.support.rlx_server import RlxServer, agent_answers

PAGE = ROOT / "docs" / "guide" / "clients.md"


def block(language: str) -> Block:
    (found,) = [block for block in blocks(PAGE) if block.language == language]
    return found


@pytest.mark.parametrize("flip", [False, True])
def test_the_client_in_node_plays_an_episode(flip: bool, tmp_path: Path) -> None:
    program = tmp_path / "client.js"
    program.write_text(block("js").text, encoding="utf-8")
    # Sometimes to the left, and with responses that contain a float where others have an integer.
    with RlxServer(agent_answers(lambda state: 1.0 if flip else int(state[0] < 2))) as server:
        printed = run_node(program, server.address, folder=tmp_path)
    end = 10 if flip else 2
    assert printed == f"ready\nended at {end}, answered with null\n"
    init, *updates = server.messages
    assert init == {"command": "init", "exploit": True}
    assert [update["terminal"] for update in updates] == [False] * 10 + [True]
    states = [update["state"] for update in updates]
    assert [update["reward"] for update in updates] == [None, *(place for (place,) in states[1:])]
    assert states[0] == [0.0]
    assert states[-1] == [end]


def test_the_client_in_python_is_answered_as_the_comments_say() -> None:
    names: dict[str, object] = {}
    with RlxServer(agent_answers(lambda state: 3)) as server:
        program = block("py").text.replace("localhost:7001", server.address)
        exec(compile(program, str(PAGE), "exec"), names)
    assert names["action"] == 3
    assert [message["command"] for message in server.messages] == ["init", *["update"] * 3, "update_metrics"]


def test_the_table_of_types_and_the_limits() -> None:
    text = " ".join(PAGE.read_text("utf-8").split())
    for name in "NULL INT4 STRING DOUBLE BOOLEAN IMAGE NDARRAY LIST UINT4 INT64 DICT".split():
        assert f"| {name} | {getattr(rlx, name)} |" in text
    limits = rlx.Limits()
    assert f"at most {limits.max_frame // 2**20} MiB" in text
    depth_and_axes = f"up to {limits.max_depth} levels deep, an array may have up to {limits.max_axes} axes"
    assert f"{depth_and_axes}, and a message may contain up to {limits.max_values:,} values" in text
