"""A real browser for tests: Chromium without a screen, told what to do by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

_OPTIONS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-port=0"
).split()
_PATIENCE = 60.0  # seconds: a busy machine starts it slowly


def find_chromium() -> str | None:
    """The browser's program, where there is one."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Tab:
    """An open page.

    Attributes:
        complaints: what the page wrote to its console as an error, or did not catch.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self._socket = socket
        self._number = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            told = await asyncio.wait_for(self._socket.receive_json(), _PATIENCE)
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            if told.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["params"]["exceptionDetails"])[:800])
            elif told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.complaints.append(json.dumps(told["params"]["entry"])[:800])

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression is worth there, a promise when it is kept."""
        told = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, expression: str, seconds: float = _PATIENCE) -> Any:
        """Wait until an expression is worth something, and return it; an error in it is nothing yet."""
        end = asyncio.get_running_loop().time() + seconds
        quiet = f"(() => {{ try {{ return {expression} }} catch {{ return null }} }})()"
        while not (value := await self.value(quiet)):
            assert asyncio.get_running_loop().time() < end, (expression, self.complaints, await self.value(_SEEN))
            await asyncio.sleep(0.05)
        return value

    async def look(self, scheme: str = "light", width: int = 1280, height: int = 900) -> None:
        """Choose the colours that the reader likes, and the size of the screen."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)

    async def picture(self, path: Path) -> Path:
        """Write what is seen as PNG."""
        told = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(told["data"]))
        return path


_SEEN = "document.body?.innerText.slice(0, 800)"


@contextlib.asynccontextmanager
async def opened(program: str, address: str, profile: Path) -> AsyncIterator[Tab]:
    """Within: a browser of its own with the page at ``address``; ``profile`` is a folder for what it keeps."""
    errors = profile.with_suffix(".log")
    with errors.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, *_OPTIONS, f"--user-data-dir={profile}", "about:blank", stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        port = await _port(profile, process, errors)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                target = next(each for each in await answer.json() if each["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                await tab.call("Page.navigate", url=address)
                yield tab
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _port(profile: Path, process: asyncio.subprocess.Process, errors: Path) -> int:
    """Where the browser listens, which it writes down as soon as it does."""
    end = asyncio.get_running_loop().time() + _PATIENCE
    while asyncio.get_running_loop().time() < end and process.returncode is None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((profile / "DevToolsActivePort").read_text().split()[0])
        await asyncio.sleep(0.05)
    raise AssertionError(f"Chromium did not start: {errors.read_text(errors='replace')[-800:]}")
