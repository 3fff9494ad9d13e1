"""The JavaScript client, in Node.js and in a browser, against a scripted server."""

from __future__ import annotations

import asyncio
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.support.apps import free_port
from tests.support.node import run_node

web = pytest.importorskip("aiohttp.web", reason="needs the extra serve: the server of these tests is one of aiohttp")

SCRIPT = Path(str(resources.files("evorl.serving").joinpath("client.js")))
Answer = dict[str, Any] | str | None  # a message, a text to send unchanged, or None to disconnect


class JsonServer:
    """Server thread that answers WebSocket messages by ``answer(message)``, and serves the script and the page."""

    def __init__(self, answer: Callable[[dict[str, Any]], Answer], page: str = "") -> None:
        self.messages: list[dict[str, Any]] = []
        self.results: queue.Queue[str] = queue.Queue()
        self.num_connections = self.port = 0
        self._answer, self._page = answer, page
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> JsonServer:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        assert not self._thread.is_alive(), "the thread of the scripted server does not end"

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    def _run(self) -> None:
        app = web.Application()
        app.router.add_get("/ws", self._talk)
        app.router.add_get("/client.js", self._script)
        app.router.add_get("/", self._show)
        app.router.add_post("/told", self._hear)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _script(self, request: Any) -> Any:
        return web.Response(text=SCRIPT.read_text("utf-8"), content_type="text/javascript")

    async def _show(self, request: Any) -> Any:
        return web.Response(text=self._page, content_type="text/html")

    async def _hear(self, request: Any) -> Any:
        self.results.put(await request.text())
        return web.Response()

    async def _talk(self, request: Any) -> Any:
        self.num_connections += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            self.messages.append(json.loads(message.data))
            answer = self._answer(self.messages[-1])
            if answer is None:
                break
            await socket.send_str(answer if isinstance(answer, str) else json.dumps(answer))
        await socket.close()
        return socket


def agents(message: dict[str, Any]) -> Answer:
    """Return responses of an agent server whose actions are the sums of the states."""
    sid, command = message["sid"], message["command"]
    if command == "init":
        return {"sid": sid, "response": "ready"}
    if command == "update":
        action = None if message["terminal"] else sum(message["state"])
        return {"sid": sid, "response": "action", "data": action}
    if command in ("reset", "update_metrics", "disconnect"):
        return {"sid": sid, "response": "done"}
    return {"sid": sid, "response": "error", "message": "unknown command"}


def in_node(server: JsonServer, body: str, folder: Path) -> Any:
    """Return the values that a program passes to ``tell(...)``; ``client`` and ``said``, which returns an error, are
    defined.
    """
    program = f"""
    const {{EvorlClient, AgentError}} = require({json.dumps(str(SCRIPT))});
    const pauses = [], told = [], tell = (...values) => told.push(...values);
    const client = new EvorlClient({json.dumps(server.url)}, {{pause: async seconds => void pauses.push(seconds)}});
    const words = error => `${{error.name}}: ${{error.message}}`;
    const said = promise => promise.then(value => `no error: ${{value}}`, words);
    (async () => {{ {body} }})().then(() => {{ client.close(); console.log(JSON.stringify(told)); }});
    """
    return json.loads(run_node(program, folder=folder))


def test_an_episode_and_what_the_server_hears_of_it(tmp_path: Path) -> None:
    body = """
    const agent = client.agent("one");
    tell(await agent.init({exploit: true, obs_space: {shape: [2]}, token: "secret"}));
    tell(await agent.update(undefined, [1, 2]), await agent.update(1, Float32Array.of(0.5, 2), false));
    tell(await agent.update(2, null, true, {truncated: true}), await agent.reset());
    tell(await agent.metrics.scalar("episode_reward", 3), await agent.metrics.histogram("actions", [1, 2], 7));
    tell(await agent.disconnect(), await agent.init());
    client.close();
    tell(await agent.disconnect());
    """
    with JsonServer(agents) as server:
        assert in_node(server, body, tmp_path) == [
            "ready",
            3,
            2.5,
            None,
            "done",
            "done",
            "done",
            "done",
            "ready",
            "done",
        ]
    assert server.num_connections == 1
    assert all(message.pop("sid") == "one" for message in server.messages)
    assert server.messages == [
        {"command": "init", "exploit": True, "obs_space": {"shape": [2]}, "token": "secret"},
        {"command": "update", "reward": None, "state": [1, 2], "terminal": False},
        {"command": "update", "reward": 1, "state": [0.5, 2], "terminal": False},
        {"command": "update", "reward": 2, "state": None, "terminal": True, "truncated": True},
        {"command": "reset"},
        {"command": "update_metrics", "data": [{"method": "scalar", "name": "episode_reward", "y": 3, "x": None}]},
        {"command": "update_metrics", "data": [{"method": "histogram", "name": "actions", "y": [1, 2], "x": 7}]},
        {"command": "disconnect"},
        {"command": "init", "exploit": False},
    ]


def test_several_agents_over_one_socket_and_questions_in_turn(tmp_path: Path) -> None:
    held: list[dict[str, Any]] = []

    def crossed(message: dict[str, Any]) -> Answer:
        """Answer the second agent before the first."""
        if message["command"] == "update" and message["sid"] == "agent-0" and not held:
            held.append(message)
            return json.dumps({"sid": "somebody else", "response": "action", "data": -1})
        return agents(message)

    body = """
    const one = client.agent(), two = client.agent();
    await Promise.all([one.init(), two.init()]);
    const first = one.update(null, [1]), second = one.update(0, [2]);
    tell(await two.update(null, [10]), await two.update(0, [20]));
    client.close();
    tell(await said(first), await said(second));
    """
    with JsonServer(crossed) as server:
        output = in_node(server, body, tmp_path)
    assert output == [10, 20, "AgentError: connection closed", "AgentError: no connection is available."]
    assert server.num_connections == 1
    states = [message["state"] for message in server.messages if message["command"] == "update"]
    assert sorted(states) == [[1], [10], [20]], "the second question of the first agent waits for its first answer"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"sid": "a", "response": "error", "message": "can't reset agent"}, "can't reset agent"),
        ({"sid": "a", "response": "error"}, "unknown error"),
        ({"response": "error", "message": "bad token"}, "bad token"),
        ({"sid": "a", "data": 3}, "wrong message format"),
        ("not JSON", "wrong message format"),
        ("null", "wrong message format"),
        (None, "connection closed"),
    ],
)
def test_errors_in_the_words_of_the_protocol(answer: Answer, words: str, tmp_path: Path) -> None:
    with JsonServer(lambda message: answer if message["command"] == "reset" else agents(message)) as server:
        body = "const agent = client.agent('a'); tell(await said(agent.reset()), await agent.init());"
        assert in_node(server, body, tmp_path) == [f"AgentError: {words}", "ready"], "the next question works again"
    assert server.num_connections == (2 if answer is None else 1)


def test_numbers_that_json_lacks_are_refused_and_not_sent(tmp_path: Path) -> None:
    body = """
    const agent = client.agent();
    tell(await said(agent.update(NaN, [1])), await said(agent.update(0, Float64Array.of(1, Infinity))));
    tell(await said(agent.update(0, [1n])), await agent.init());
    """
    with JsonServer(agents) as server:
        output = in_node(server, body, tmp_path)
    assert output == [
        "TypeError: reward is NaN (number), which JSON cannot represent: send a finite number",
        "TypeError: 1 is Infinity (number), which JSON cannot represent: send a finite number",
        "TypeError: 0 is 1 (bigint), which JSON cannot represent: send a finite number",
        "ready",
    ]
    assert [message["command"] for message in server.messages] == ["init"]


def test_a_server_that_is_not_there_is_tried_for_and_a_closed_client_stops_trying(tmp_path: Path) -> None:
    url = f"ws://127.0.0.1:{free_port()}"
    body = """
    const nobody = new EvorlClient(URL, {pause: async seconds => void pauses.push(seconds)});
    tell(await said(nobody.connect(2)), pauses.length, pauses.every(pause => 0.5 <= pause && pause <= 6));
    tell((await said(nobody.agent().init())).slice(0, 40), pauses.length);
    const left = new EvorlClient(URL, {pause: async () => left.close()});
    tell(await said(left.connect(3)));
    """
    with JsonServer(agents) as server:
        output = in_node(server, body.replace("URL", json.dumps(url)), tmp_path)
    assert output == [
        f"AgentError: no connection is available after 2 attempts at {url}",
        1,
        True,
        "AgentError: no connection is available a",
        1 + 5,
        "AgentError: connection closed",
    ]


PAGE = """<!doctype html><title>client</title><script src="client.js"></script><script>
(async () => {
  const client = new EvorlClient(`ws://${location.host}/ws`, {token: "secret"}), agent = client.agent();
  const told = [await agent.init(), await agent.update(null, [1, 2]), await agent.update(1, [], true)];
  told.push(await agent.update(null, Float32Array.of(2, 2)), await agent.reset());
  client.close();
  return told;
})().catch(String).then(told => fetch("/told", {method: "POST", body: JSON.stringify(told)}));
</script>"""


def test_in_a_browser(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs a browser: chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--no-first-run"]
    with JsonServer(agents, PAGE) as server:
        command = [browser, *options, f"http://127.0.0.1:{server.port}/"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                output = json.loads(server.results.get(timeout=60))
            finally:
                process.terminate()
    assert output == ["ready", 3, None, 4, "done"]
    assert server.messages[0] == {"sid": "agent-0", "command": "init", "exploit": False, "token": "secret"}
