"""A page in Chromium, driven through its debugging protocol: JavaScript values, console errors and screenshots."""

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
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-port=0"
).split()
_PATIENCE = 60.0  # seconds: a loaded machine starts it slowly


def find_chromium() -> str | None:
    """Return the path of the browser, or None."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Tab:
    """An open page.

    Attributes:
        complaints: console errors and uncaught exceptions of the page.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self._socket = socket
        self._number = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            response = await asyncio.wait_for(self._socket.receive_json(), _PATIENCE)
            if response.get("id") == self._number:
                assert "error" not in response, response
                return response["result"]
            if response.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(response["params"]["exceptionDetails"])[:800])
            elif response.get("method") == "Log.entryAdded" and response["params"]["entry"]["level"] == "error":
                self.complaints.append(json.dumps(response["params"]["entry"])[:800])

    async def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaiting promises."""
        response = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in response, response["exceptionDetails"]
        return response["result"].get("value")

    async def until(self, expression: str, seconds: float = _PATIENCE) -> Any:
        """Wait until an expression is truthy, and return it; exceptions count as falsy."""
        end = asyncio.get_running_loop().time() + seconds
        quiet = f"(() => {{ try {{ return {expression} }} catch {{ return null }} }})()"
        while not (value := await self.value(quiet)):
            assert asyncio.get_running_loop().time() < end, (expression, self.complaints, await self.value(_SEEN))
            await asyncio.sleep(0.05)
        return value

    async def look(self, scheme: str = "light", width: int = 1280, height: int = 900) -> None:
        """Set the color scheme and screen size."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)

    async def picture(self, path: Path) -> Path:
        """Save a screenshot as PNG."""
        response = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(response["data"]))
        return path


_SEEN = "document.body?.innerText.slice(0, 800)"


@contextlib.asynccontextmanager
async def opened(program: str, address: str, profile: Path) -> AsyncIterator[Tab]:
    """Open the page at ``address`` in a new browser; ``profile`` is its data folder."""
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
    """Return the port of the browser, which it writes to a file at its start."""
    end = asyncio.get_running_loop().time() + _PATIENCE
    while asyncio.get_running_loop().time() < end and process.returncode is None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((profile / "DevToolsActivePort").read_text().split()[0])
        await asyncio.sleep(0.05)
    raise AssertionError(f"Chromium did not start: {errors.read_text(errors='replace')[-800:]}")
