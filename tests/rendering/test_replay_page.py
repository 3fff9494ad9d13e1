"""The replay page is self-contained, contains the positions of bodies, and is drawn by a browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evorl.envs import create_env
from evorl.envs.mujoco_shapes import poses_of
from evorl.episodes.saved_episode import SavedEpisode
from evorl.rendering.replay_page import write_body_page, write_picture_page
from evorl.rendering.tiles import Shown
from tests.support.errors import raises_naming

NUM_MOMENTS = 300
TITLE = "run </script><b> & more"


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    env = create_env("host/hopper")
    yield env
    env.close()


def hop(model: Any, title: str = "episode 1") -> Shown:
    at = np.linspace(0.0, 1.0, NUM_MOMENTS)[:, None]
    qpos = np.concatenate([at, 1.25 + 0 * at, 0.3 * np.sin(9 * at), -0.5 * at, -0.4 * at, 0.3 * at], axis=1)
    episode = SavedEpisode({}, {"qpos": qpos, "qvel": np.zeros((NUM_MOMENTS, model.nv))})
    return Shown(title, np.ones(NUM_MOMENTS - 1), lambda _: np.zeros((1, 1, 3), np.uint8), episode)


@pytest.fixture(scope="module")
def page(env: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "replay.html"
    shown = [hop(env.mujoco_model), hop(env.mujoco_model, "<i>second</i>").first(NUM_MOMENTS // 2)]
    assert write_body_page(path, TITLE, shown, env, 250, 12.5) == 0
    return path


def embedded_data(page: Path) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_is_small_and_fetches_nothing(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text) < 2 * 70_000
    assert not re.search(r"https?:|\bsrc=|\bhref=|fetch\(|import\(|XMLHttp", text)
    assert "default-src 'none'" in text
    assert text.count("</script>") == 2
    assert "<title>run &lt;/script&gt;&lt;b&gt; &amp; more</title>" in text


def test_bodies_are_where_they_were(env: Any, page: Path) -> None:
    data, model = embedded_data(page), env.mujoco_model
    assert data["fps"] == 12.5
    scene = data["tiles"][0]
    moments = np.array(scene["moments"])
    assert (len(moments), moments[0], moments[-1]) == (250, 0, NUM_MOMENTS - 1)
    assert scene["returns"] == [f"{moment:.1f}" for moment in moments]
    assert [tile["isWhole"] for tile in data["tiles"]] == [True, False]
    assert data["tiles"][1]["moments"] == list(range(NUM_MOMENTS // 2 + 1))
    numbers = np.frombuffer(base64.b64decode(scene["poses"]), "<i2").reshape(250, -1, 7) / 32767
    expected = poses_of(model, hop(model).episode.arrays["qpos"][moments])  # pyright: ignore[reportOptionalMemberAccess]
    np.testing.assert_allclose(numbers[..., :3] * scene["reach"] + scene["center"], expected[..., :3], atol=1e-4)
    np.testing.assert_allclose(numbers[..., 3:], expected[..., 3:], atol=1e-4)
    assert numbers.shape[1] == 4 == 1 + max(shape["body"] for shape in data["shapes"])
    assert {shape["kind"] for shape in data["shapes"]} == {"plane", "capsule"}


def test_a_browser_draws_it(page: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium")
    picture = tmp_path / "seen.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=700,420", "--virtual-time-budget=3000"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"--screenshot={picture}"]
    seen = subprocess.run(
        [browser, *options, page.as_uri()], capture_output=True, text=True, timeout=180, check=False
    ).stdout
    captions = re.findall(r"<figcaption[^>]*>(.*?)</figcaption>", seen)
    assert len(captions) == 2, seen[-500:]
    assert re.fullmatch(r"episode 1  step \d+( \(end\))?  return \d+\.0", captions[0])
    assert captions[1].startswith("&lt;i&gt;second&lt;/i&gt;")
    canvases = re.findall(r'<canvas width="(\d+)" height="(\d+)"', seen)
    assert len(canvases) == 2
    assert all(int(width) > 200 for width, _ in canvases)


def test_a_picture_within_a_page(tmp_path: Path) -> None:
    write_picture_page(tmp_path / "a.html", TITLE, b"bytes")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert f"data:image/webp;base64,{base64.b64encode(b'bytes').decode()}" in text
    assert "</script>" not in text


def test_without_bodies_there_is_no_scene(env: Any, tmp_path: Path) -> None:
    blind = Shown("a film", np.ones(2), lambda _: np.zeros((1, 1, 3), np.uint8))
    with raises_naming(ValueError, "positions of bodies"):
        write_body_page(tmp_path / "a.html", TITLE, [blind], env, 10, 20)
    assert not list(tmp_path.iterdir())
