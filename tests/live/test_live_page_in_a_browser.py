"""The live page in a real browser: curves during recording, in light and dark mode and on a small screen."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evorl.live.live_page import LivePage
from evorl.live.metrics_store import MetricsStore
from evorl.live.page_service import serving
from evorl.live.watched_runs import WatchedRuns
from evorl.runs.run_state import RUNNING, HeldState, RunState
from tests.support.browser import Tab, find_chromium, opened
from tests.support.run_folders import PNG, START, make_run

LAST = "document.querySelector('svg.chart').getAttribute('aria-label')"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Create a run that is training and serving, one of three seeds, and one whose name contains HTML."""
    root = tmp_path / "runs"
    for number, (name, seeds) in enumerate((("ppo/1", 1), ("ppo/2", 3), ("<img src=x onerror=alert(1)>", 1))):
        returns = [[100 * number + 40 * (1 - math.exp(-i / 9)) + seed for seed in range(seeds)] for i in range(30)]
        folder = make_run(root, name, returns, {"total_timesteps": 60_000}, start=START)
    folder = WatchedRuns([str(root)])._runs[1].folder
    header, *rows = folder.metrics_csv.read_text().splitlines()
    lines = [
        f"{header},serving/clients,serving/queue_length",
        *(f"{row},{4 + i},{i % 3}" for i, row in enumerate(rows)),
    ]
    folder.metrics_csv.write_text("\n".join(lines) + "\n")
    folder.learning_curve.write_bytes(PNG)
    return root


def look(runs: Path, tmp_path: Path, store: MetricsStore, seen: Callable[[Tab, str], Awaitable[None]]) -> None:
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium")

    async def run() -> None:
        page = LivePage(WatchedRuns([str(runs)]), store, interval=0.1)
        async with serving(page) as address, opened(program, address, tmp_path / "profile") as tab:
            await seen(tab, address)
            assert tab.complaints == []

    asyncio.run(run())


def test_it_shows_a_run_as_it_goes_on(runs: Path, tmp_path: Path) -> None:
    folder = WatchedRuns([str(runs)])._runs[1].folder
    assert folder.path.name == "1"
    held = HeldState(folder.state)
    held.write(RunState(RUNNING, 60_000))

    async def seen(tab: Tab, address: str) -> None:
        await tab.until("document.querySelector('#live').textContent === 'live'")
        await tab.until("document.querySelectorAll('svg.chart path.mean').length === 3")
        assert (await tab.value(LAST)).startswith("eval/episode_return, newest values: ppo/1: 38.4")
        table = await tab.value("document.querySelector('#runs').innerText")
        assert "running" in table
        assert "30k of 60k" in table
        assert "<img src=x onerror=alert(1)>" in table  # text, not an element
        assert await tab.value("document.querySelectorAll('#runs img').length") == 0
        assert "33" in (tiles := await tab.value("document.querySelector('#tiles').innerText"))
        assert "clients" in tiles
        assert await tab.until("document.querySelector('#figures img').naturalWidth") == 1
        with folder.metrics_csv.open("a") as file:
            file.write("31,31000,0.1,0.5,7")
            file.flush()
            await asyncio.sleep(0.5)
            assert "38.4" in await tab.value(LAST)
            file.write("7.25,9,2\n")
        await tab.until(f"{LAST}.includes('77.25')")
        await tab.until("document.querySelector('#tiles').innerText.startsWith('9')")
        held.release()
        await tab.until("!document.querySelector('#runs').innerText.includes('running')")

    try:
        look(runs, tmp_path, MetricsStore(), seen)
    finally:
        held.release()


def test_runs_and_metrics_are_chosen(runs: Path, tmp_path: Path) -> None:
    store = MetricsStore()

    async def seen(tab: Tab, address: str) -> None:
        await tab.until("document.querySelectorAll('#runs input').length === 3")
        await tab.until("document.querySelectorAll('svg.chart path.mean').length === 3")
        boxes = "[...document.querySelectorAll('#runs input')]"
        assert await tab.value(f"{boxes}.filter(box => box.checked).length") == 1
        click = f"{boxes}.find(box => !box.checked).click()"
        await tab.value(f"{click}, {click}")  # the second while the page handles the first
        await tab.until("document.querySelector('svg.chart').querySelectorAll('path.mean').length === 3")
        assert await tab.value("document.querySelector('svg.chart').querySelectorAll('path.seed').length") == 3
        store.scalar("episode_reward", 12.5, x=400)
        store.histogram("weights", [1.0, 2.0, 2.0])
        await tab.until(f"{boxes}.length === 4")
        await tab.value(f"{boxes}.find(box => !box.checked).click()")
        select = "[...document.querySelectorAll('#charts select')].at(-1)"
        await tab.until(f"{select}.value === 'episode_reward'")
        await tab.until(
            "[...document.querySelectorAll('#charts svg.chart')].at(-1).ariaLabel?.includes('sent by clients: 12.5')"
        )
        await tab.value("document.querySelector('#add').click()")
        await tab.until("document.querySelectorAll('#charts select').length === 5")
        choice = "s.value = 'train/entropy'; s.dispatchEvent(new Event('change'))"
        await tab.value(f"(s => {{ {choice} }})({select})")
        await tab.until(
            "[...document.querySelectorAll('#charts svg.chart')].at(-1).ariaLabel?.startsWith('train/entropy')"
        )
        await tab.until("document.querySelectorAll('#bars rect').length === 3")
        chosen = await tab.value("location.hash")
        await tab.call("Page.navigate", url="about:blank")
        await tab.call("Page.navigate", url=f"{address}/{chosen}")  # a bookmark
        await tab.until("document.querySelectorAll('#charts select').length === 5")
        assert await tab.value(f"{select}.value") == "train/entropy"
        await tab.look(height=2000)  # moves the page under the pointer
        place = "document.querySelector('svg.chart').getBoundingClientRect()"
        at = await tab.value(f"({{x: {place}.right - 40, y: {place}.top + 90}})")
        await tab.until("document.querySelector('svg.chart').querySelectorAll('path.mean').length === 3")
        tip = "document.querySelector('.tip:not([hidden])')?.innerText"
        tooltip = None
        for _ in range(200):  # redrawing a chart hides it
            await tab.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
            if tooltip := await tab.value(tip):
                break
            await asyncio.sleep(0.05)
            at["x"] -= 1
        assert tooltip is not None
        assert "environment steps" in tooltip
        assert "reward" in tooltip

    look(runs, tmp_path, store, seen)


def test_it_is_readable_in_light_in_dark_and_on_a_phone(runs: Path, tmp_path: Path) -> None:
    async def seen(tab: Tab, address: str) -> None:
        brightness = {}
        for name, scheme, width in (("light", "light", 1280), ("dark", "dark", 1280), ("phone", "light", 390)):
            await tab.look(scheme, width)
            await tab.until("document.querySelectorAll('svg.chart path.mean').length === 3")
            assert await tab.value("document.documentElement.scrollWidth <= innerWidth"), f"{name} scrolls sideways"
            with Image.open(await tab.picture(tmp_path / f"{name}.png")) as picture:
                colors = picture.convert("RGB").getcolors(1 << 24) or []
            most, color = max(colors)
            paper = np.atleast_1d(color)
            assert most > 0.5 * sum(number for number, _ in colors)
            brightness[name] = float(paper.mean())
            line = await tab.value("getComputedStyle(document.querySelector('path.mean')).stroke")
            drawn = [int(part) for part in line.removeprefix("rgb(").rstrip(")").split(",")]
            assert np.abs(drawn - paper).max() > 100
        assert brightness == pytest.approx({"light": 255, "dark": (0x15 + 0x18 + 0x1C) / 3, "phone": 255})

    look(runs, tmp_path, MetricsStore(), seen)


def test_it_comes_back_when_the_server_does(runs: Path, tmp_path: Path) -> None:
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium")

    async def run() -> None:
        def page() -> LivePage:
            return LivePage(WatchedRuns([str(runs)]), MetricsStore(), interval=0.1)

        async with serving(page()) as address:
            tab_at = opened(program, address, tmp_path / "profile")
            tab = await tab_at.__aenter__()
            await tab.until("document.querySelectorAll('svg.chart path.mean').length === 3")
        try:
            await tab.until("document.querySelector('#live').textContent.startsWith('connection lost')")
            async with serving(page(), int(address.rpartition(":")[2])):
                await tab.until("document.querySelector('#live').textContent === 'live'")
        finally:
            await tab_at.__aexit__(None, None, None)

    asyncio.run(run())
