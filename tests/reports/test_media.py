"""Images and videos of run folders in a page."""

from __future__ import annotations

import base64
from pathlib import Path

from evorl.reports.media import figures, media_of
from evorl.reports.recorded_run import find_runs
from tests.support.run_folders import PNG, make_run


def put(path: Path, content: bytes = PNG) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_the_newest_of_each_folder(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", [[1.0]])
    for steps in range(6):
        put(folder.plots / f"{steps:012d}.png")
    put(folder.episodes / "000000000001_000.gif")
    put(folder.path / "schedule.png")
    put(folder.learning_curve)
    put(folder.checkpoints / "1" / "x.png")
    put(folder.path / "episodes.txt")
    (run,) = find_runs(tmp_path)
    assert [medium.name for medium in media_of(run)] == [
        "schedule.png",
        "episodes/000000000001_000.gif",
        *(f"plots/{steps:012d}.png" for steps in (5, 4, 3, 2)),
    ]


def test_the_last_of_a_folder_is_the_one_with_the_largest_number(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", [[1.0]])
    for steps in (8, 9, 10, 11, 100):
        put(folder.plots / f"step_{steps}.png")
    (run,) = find_runs(tmp_path)
    assert [medium.path.stem for medium in media_of(run)] == ["step_100", "step_11", "step_10", "step_9"]


def test_nothing_behind_a_link_is_taken(tmp_path: Path) -> None:
    secret = tmp_path / "home" / "secret.png"
    put(secret)
    folder = make_run(tmp_path / "runs", "run", [[1.0]])
    (folder.path / "a.png").symlink_to(secret)
    (folder.path / "plots").symlink_to(secret.parent)
    (run,) = find_runs(tmp_path / "runs")
    assert media_of(run) == []


def test_every_run_gets_its_first_before_any_gets_its_second(tmp_path: Path) -> None:
    for name in "ab":
        folder = make_run(tmp_path, name, [[1.0]])
        put(folder.plots / "2.mp4", b"x" * 3000)
        put(folder.plots / "1.png", b"y" * 3000)
    shown, left_out = figures(find_runs(tmp_path), room=9500)
    assert [figure[1].text for figure in shown] == ["a: plots/2.mp4", "b: plots/2.mp4"]
    assert [(medium.run, medium.name) for medium in left_out] == [("a", "plots/1.png"), ("b", "plots/1.png")]
    video = shown[0][0]
    assert (video.tag, "controls" in video.attrib) == ("video", True)
    assert video.get("src") == f"data:video/mp4;base64,{base64.b64encode(b'x' * 3000).decode()}"
