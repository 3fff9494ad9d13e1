"""The documentation site: recorded outputs, figures of the front page, and every page in a real browser."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image, ImageSequence

from benchmarks.results import load
from benchmarks.speed.comparison import medians_of, readings_by_side
from benchmarks.speed.picture import measured_ratios
from docs import notebook_pages, site_pages
from evorl.cli.composition import compose_config
from tests.support.browser import Tab, find_chromium, opened

ROOT = Path(__file__).resolve().parents[1]
INDEX = (ROOT / "docs" / "index.md").read_text("utf-8")
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": "# Title"},
        {"cell_type": "code", "outputs": [{"output_type": "stream", "text": ["1 < 2\n", "3\n"]}]},
        {"cell_type": "code", "outputs": [{"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo=\n"}}]},
        {"cell_type": "code", "outputs": []},
    ]
}
BLOCK = "```python\nprint()\n```\n"
FOUND = {  # words that people search for, and the page that answers
    "custom environment": "guide/environment.html",
    "early stopping": "guide/errors.html",
    "fine-tuning": "guide/continuing.html",
    "pretrained": "guide/continuing.html",
    "citation": "guide/errors.html",
    "Colab": "guide/notebook.html",
    "multi-GPU": "guide/several_processes.html",
    "hyperparameter": "guide/sweeps.html",
    "frame stack": "guide/command_line.html",
    "soft update": "algorithms/sac.html",
    "vectorized": "guide/errors.html",
    "FAQ": "guide/errors.html",
    "macOS": "guide/errors.html",
    "transfer learning": "guide/continuing.html",
    "checkpoint": "guide/evaluate_and_resume.html",
    "tuned hyperparameters": "guide/tuned_settings.html",
}


@pytest.mark.parametrize(("word", "page"), FOUND.items())
def test_pages_contain_what_people_search_for(word: str, page: str) -> None:
    text = (ROOT / "docs" / page).with_suffix(".md").read_text("utf-8")
    assert word.casefold() in " ".join(text.split()).casefold()


def test_outputs_follow_their_code_blocks() -> None:
    text = notebook_pages.with_outputs(f"# Title\n\n{BLOCK}\n{BLOCK}\n{BLOCK}", NOTEBOOK)
    first, second, third = text.split(BLOCK.strip())[1:]
    assert "1 &lt; 2&#10;3" in first
    assert 'src="data:image/png;base64,iVBORw0KGgo="' in second
    assert third.strip() == ""


def test_a_page_that_differs_from_its_notebook_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"2 code blocks, but 3 cells.*tests\.support\.notebooks"):
        notebook_pages.with_outputs(f"{BLOCK}\n{BLOCK}", NOTEBOOK)


@pytest.mark.parametrize("address", ["", "https://github.com/someone/evorl"])
def test_links_to_the_repository_need_its_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(site_pages.REPOSITORY, address)
    config = site_pages.on_config({"site_name": "evorl", "docs_dir": str(ROOT / "docs"), "repo_url": None})
    assert re.fullmatch(r"evorl \d+\.\d+\.\d+", config["site_name"])
    assert "Apache-2.0" in config["copyright"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="notebooks/quickstart.md"))
    shown = notebook_pages.on_page_markdown((ROOT / "docs/notebooks/quickstart.md").read_text(), page, config)
    assert (
        "colab.research.google.com/github/someone/evorl/blob/main/docs/notebooks/quickstart.ipynb" in shown
    ) == bool(address)
    assert (config["repo_url"] or "") == address


def test_figures_of_the_front_page_are_measured() -> None:
    speed = load("speed")
    ratios = {name: f"{verdict.value:.1f}" for (name, _), verdict in measured_ratios(speed).items()}
    sweep = medians_of(readings_by_side(speed["ppo_cartpole_sweep"]["readings"]))
    text = " ".join(INDEX.split())
    assert f"[{ratios['ppo_cartpole_8seeds']} times as many steps per second as rejax](benchmarks.md#ppo_ca" in text
    assert f"[{ratios['host_ppo_cartpole_sb3']} times as many as Stable-Baselines3](benchmarks.md#host_ppo_ca" in text
    together, apart = (sweep[side]["seconds"] for side in ("one program", "one after another"))
    assert f"[take {together:.0f} s instead of {apart:.0f} s one after another]" in text
    gpu = (ROOT / "docs/guide/gpu.md").read_text("utf-8")
    measured = re.search(r"\| `ppo_cartpole` \| ([\d,]+) ", gpu)
    assert measured
    assert f"[{int(measured[1].replace(',', '')) / 1e6:.0f} million steps per second](guide/gpu.md" in text
    row = next(line for line in (ROOT / "docs/benchmarks.md").read_text().splitlines() if "[CMA-MAE, sphere" in line)
    ours, published = re.findall(r"QD score of ([\d,]+) .* publishes ([\d,]+)\]", text)[0]
    figures = {float(number.replace(",", "")) for number in re.findall(r"[\d,]+\.\d", row)}
    assert {round(figure) for figure in figures} >= {int(ours.replace(",", "")), int(published.replace(",", ""))}


def test_moving_pictures_of_the_front_page_are_small() -> None:
    shown = re.findall(r'<img src="(assets/gallery/[\w.]+)"', INDEX)
    files = sorted((ROOT / "docs" / "assets" / "gallery").iterdir())
    assert sorted(ROOT / "docs" / name for name in shown) == files
    assert len(files) >= 4
    assert max(path.stat().st_size for path in files) < 200_000
    assert sum(path.stat().st_size for path in files) < 1_000_000
    for path in files:
        with Image.open(path) as picture:
            frames = sum(1 for _ in ImageSequence.Iterator(picture))
        assert frames > 10, f"{path.name} does not move"


def test_captions_of_the_front_page_state_the_steps_of_its_commands() -> None:
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", INDEX)
    trainings = re.findall(r"^evorl train (.*total_timesteps.*|agent=\S+ env=\S+)$", INDEX, re.MULTILINE)
    assert len(trainings) == len(captions) - 1 > 4  # the last one is drawn by benchmarks.gallery
    for training, caption in zip(trainings, captions, strict=False):
        steps = compose_config(training.split()).total_timesteps
        assert f"{int(steps):,} steps" in caption, f"evorl train {training}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site."""
    if importlib.util.find_spec("material") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def browse(tmp_path: Path, visit: Callable[[Tab], Awaitable[None]]) -> None:
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium")

    async def run() -> None:
        async with opened(program, "about:blank", tmp_path / "profile") as tab:
            await tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
            await visit(tab)
            assert tab.complaints == []

    asyncio.run(run())


async def go(tab: Tab, page: Path) -> None:
    await tab.call("Page.navigate", url=page.as_uri())
    await tab.until(f"location.pathname.endsWith({json.dumps(str(page))}) && document.readyState === 'complete'")


@pytest.mark.parametrize("width", [390, 1440])
def test_no_page_has_a_script_error_or_scrolls_sideways(site: Path, tmp_path: Path, width: int) -> None:
    pages = sorted(page for page in site.rglob("*.html") if page.name != "404.html")
    assert len(pages) > 80

    async def visit(tab: Tab) -> None:
        await tab.look("dark", width)
        wide = {}
        for page in pages:
            await go(tab, page)
            if (needed := await tab.value("document.documentElement.scrollWidth")) > width:
                wide[page.relative_to(site).as_posix()] = needed
        assert wide == {}

    browse(tmp_path, visit)


def test_the_search_finds_what_people_type(site: Path, tmp_path: Path) -> None:
    async def visit(tab: Tab) -> None:
        await tab.look("light", 1440)
        query = "document.querySelector('[data-md-component=search-query]')"
        links = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
        missing = {}
        for word, page in FOUND.items():
            await go(tab, site / "concepts.html")
            await tab.value(f"{query}.focus(), {query}.value = {json.dumps(word)}")
            for kind in ("input", "keyup"):
                await tab.value(f"{query}.dispatchEvent(new Event('{kind}', {{bubbles: true}}))")
            await tab.until(f"{links}.length")
            pages = list(dict.fromkeys(re.split(r"[?#]", link)[0] for link in await tab.value(links)))
            if not any(link.endswith(f"/{page}") for link in pages[:4]):
                missing[word] = pages
        assert missing == {}

    browse(tmp_path, visit)


def test_the_policy_plays_on_the_front_page(site: Path, tmp_path: Path) -> None:
    page = site / "assets" / "cartpole" / "policy.html"
    assert page.stat().st_size < 200_000
    assert 'src="assets/cartpole/policy.html"' in (site / "index.html").read_text("utf-8")

    async def visit(tab: Tab) -> None:
        await go(tab, page)
        await tab.until("/step \\d{2,}, return/.test(document.body.innerText)")

    browse(tmp_path, visit)
