"""Files that a user may be handed, each without one of its keys, with another value, or cut: one sentence each."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.episodes.saved_episode import SavedEpisode
from evorl.live.live_page import LivePage
from evorl.live.metrics_store import MetricsStore
from evorl.live.page_service import serving
from evorl.live.watched_runs import WatchedRuns
from evorl.reports.recorded_run import RecordedRun
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.replay_file import ReplayFileError, read_columns, read_replay_facts, write_replay_file
from tests.strangers.conftest import Refused
from tests.strangers.test_run_folders import store
from tests.support.damaged_json import MISSING, VALUES, changed, places
from tests.support.errors import raises_naming
from tests.support.recorded_pendulum import TITLE, pendulum_columns
from tests.support.servers import all_it_says

values = st.sampled_from(VALUES)
T = 4
EPISODE = {
    "obs": np.zeros((T + 1, 4), np.float32),
    "action": np.zeros(T, np.int32),
    "reward": np.ones(T, np.float32),
    "termination": np.zeros(T, np.bool_),
}
ABOUT = {"env": {"library": "gymnax", "name": "CartPole-v1"}, "length": T, "return": 4.0, "name": "a", "seed": 0}
ABOUT |= {"success": True, "success_ever": True}


def save_episode(folder: Path) -> dict[str, Any]:
    """An episode on disk; its description."""
    SavedEpisode(ABOUT, EPISODE).save(folder / "episode")
    return json.loads((folder / "episode.json").read_text())


EPISODE_KEYS = [*[(key,) for key in [*ABOUT, "format", "arrays"]], ("arrays", "obs"), ("arrays", "obs", "shape")]
EPISODE_KEYS += [("env", "name"), ("env", "library"), ("arrays", "reward", "dtype"), ("arrays", "action", "shape", 0)]


@pytest.mark.parametrize("path", EPISODE_KEYS, ids=str)
def test_an_episode_with_another_value(path: tuple[Any, ...], tmp_path: Path) -> None:
    about = save_episode(tmp_path)
    for value in VALUES:
        (tmp_path / "episode.json").write_text(json.dumps(changed(about, path, value)))
        with contextlib.suppress(RunFolderError):
            episode = SavedEpisode.load(tmp_path / "episode.json")
            assert f"{episode.about['length']} {episode.about['return']:.2f}"
            assert value is True or path[0] in ("name", "env", "seed", "return", "success", "success_ever"), value


@pytest.mark.parametrize(
    "path", [("return",), ("length",), ("name",), ("success",), ("env",), ("arrays", "obs")], ids=str
)
@pytest.mark.parametrize("value", [MISSING, [], "abc", 10**400], ids=["missing", "list", "text", "huge"])
def test_show_episode_of_another_value(path: tuple[Any, ...], value: Any, tmp_path: Path, refused: Refused) -> None:
    about = save_episode(tmp_path)
    (tmp_path / "episode.json").write_text(json.dumps(changed(about, path, value)))
    if (path, value) in ((("name",), MISSING), (("name",), "abc")):
        assert SavedEpisode.load(tmp_path / "episode.npz").about["length"] == T
    else:
        message = refused("show-episode", f"episode={tmp_path / 'episode.npz'}")
        assert "episode" in message
        assert not (tmp_path / "episode.png").exists()


@pytest.mark.parametrize("value", VALUES, ids=lambda value: ascii(value)[:12])
@pytest.mark.parametrize("key", ["library", "name", "wrappers", "max_episode_steps"])
def test_show_episode_of_another_environment(key: str, value: Any, tmp_path: Path, refused: Refused) -> None:
    about = save_episode(tmp_path)
    about["env"][key] = "minatar" if value is MISSING else value
    (tmp_path / "episode.json").write_text(json.dumps(about))
    if value is not None or key == "name":  # null is the default
        refused("show-episode", f"episode={tmp_path / 'episode.npz'}")


ODD_ARRAYS = {
    "no rows": {"obs": np.zeros((0, 4), np.float32)},
    "no columns": {"obs": np.zeros((T + 1, 0), np.float32)},
    "a number": {"obs": np.zeros((), np.float32)},
    "a row less": {"obs": np.zeros((T, 4), np.float32)},
    "a picture": {"obs": np.zeros((T + 1, 4, 4), np.float32)},
    "text": {"obs": np.full((T + 1, 4), "a")},
    "positions alone": {"obs": np.zeros((T + 1, 4, 1), np.float32), "qpos": np.zeros((T + 1, 4), np.float32)},
    "bodies of another": {"qpos": np.zeros(T + 1), "qvel": np.zeros(T + 1)},
    "a goal alone": {"obs.achieved_goal": np.zeros((T + 1, 2))},
    "goals of other sizes": {"obs.achieved_goal": np.zeros((T + 1, 2)), "obs.desired_goal": np.zeros((T + 1, 1))},
}


@pytest.mark.parametrize("name", ODD_ARRAYS)
def test_show_episode_of_odd_arrays(name: str, tmp_path: Path, refused: Refused) -> None:
    SavedEpisode(ABOUT, {**EPISODE, **ODD_ARRAYS[name]}).save(tmp_path / "episode")
    refused("show-episode", f"episode={tmp_path / 'episode.npz'}")


@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_an_episode_that_is_cut(suffix: str, tmp_path: Path) -> None:
    save_episode(tmp_path)
    file = tmp_path / f"episode{suffix}"
    whole = file.read_bytes()
    for end in (0, 1, len(whole) // 2, len(whole) - 2):
        file.write_bytes(whole[:end])
        with raises_naming(RunFolderError, "episode", "corrupted"):
            SavedEpisode.load(file)


def replay(folder: Path) -> Path:
    """Recorded transitions on disk."""
    write_replay_file(folder / "replay", pendulum_columns(), TITLE)
    return folder / "replay.npz"


@given(data=st.data(), value=values)
def test_a_replay_file_with_another_value(data: st.DataObject, value: Any, tmp_path_factory: Any) -> None:
    path = replay(tmp_path_factory.mktemp("replay"))
    facts = json.loads(path.with_suffix(".json").read_text())
    place = data.draw(st.sampled_from(list(places(facts))))
    path.with_suffix(".json").write_text(json.dumps(changed(facts, place, value)))
    with contextlib.suppress(ReplayFileError):
        read = read_replay_facts(path)
        columns = read_columns(path, read)
        assert {name: len(x) for name, x in columns.items()} == dict.fromkeys(columns, read["num_steps"])
        assert columns["termination"].dtype == np.bool_


@pytest.mark.parametrize("name", ["rewards", "termination", "truncation"])
@pytest.mark.parametrize("dtype", ["float64", "int8", "bool", "<U3", "complex64"])
@pytest.mark.parametrize("is_flat", [True, False])
def test_a_replay_file_of_other_columns(name: str, dtype: str, is_flat: bool, tmp_path: Path) -> None:
    columns = pendulum_columns()
    column = np.zeros(len(columns["rewards"]), dtype)
    write_replay_file(tmp_path / "replay", columns, TITLE)
    with np.load(tmp_path / "replay.npz") as stored:
        arrays: dict[str, Any] = {**stored, name: column if is_flat else column[:, None]}
    np.savez(tmp_path / "replay.npz", **arrays)
    facts = json.loads((tmp_path / "replay.json").read_text())
    facts["columns"][name] = {"dtype": str(column.dtype), "shape": [] if is_flat else [1]}
    (tmp_path / "replay.json").write_text(json.dumps(facts))
    fits = is_flat and dtype in (("float64", "int8") if name == "rewards" else ("bool",))
    with contextlib.nullcontext() if fits else raises_naming(ReplayFileError, name, "replay.npz"):
        read_columns(tmp_path / "replay.npz", read_replay_facts(tmp_path / "replay.npz"))


HEADER = "iterations,timesteps,eval/episode_return,train/loss\n"
TABLES = {
    "empty": "",
    "header": HEADER,
    "no steps": "iterations,eval/episode_return\n1,2\n",
    "empty steps": f"{HEADER}1,,2,3\n",
    "infinite steps": f"{HEADER}1,inf,2,3\n",
    "nan steps": f"{HEADER}1,nan,2,3\n",
    "huge steps": f"{HEADER}1,1e300,2,3\n",
    "text": f"{HEADER}1,2,abc,3\n",
    "short row": f"{HEADER}1,2\n",
    "long row": f"{HEADER}1,2,3,4,5\n",
    "twice": "timesteps,timesteps,eval/episode_return\n1,2,3\n",
    "open quote": f'{HEADER}1,2,"3,4\n',
    "null": f"{HEADER}1,2,\0,4\n",
    "long cell": f"{HEADER}1,2,{'9' * 200_000},4\n",
    "no Unicode": f"{HEADER}1,2,\udcff,4\n",
    "names of methods": "iterations,timesteps,__class__,update\n1,2,3,4\n",
    "markup": "iterations,timesteps,<script>,$\\frac{\n1,2,3,4\n",
}


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_a_run_that_are_damaged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from evorl.cli import commands

    folder = store(tmp_path / "runs", {})
    folder.joinpath("metrics.csv").write_text(TABLES[name], errors="surrogateescape")
    folder.joinpath("metrics.jsonl").write_text(
        '{"timesteps": 1e400, "time/clock": 1}\n{"timesteps": 1' + "0" * 400 + "}\n"
    )
    for command in (("runs", str(tmp_path / "runs")), ("report", str(tmp_path / "runs"), f"to={tmp_path / 'a.html'}")):
        monkeypatch.setattr("sys.argv", ["evorl", *command])
        with contextlib.suppress(SystemExit):
            commands.main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
    with contextlib.suppress(RunFolderError):
        assert isinstance(RecordedRun(RunFolder(folder), "a").timesteps, int)


def test_names_of_other_bytes_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The live page and a report of folders whose names are not UTF-8."""
    from evorl.cli import commands

    for name in (b"\xff\xfe\x1b", b"\xff"):
        folder = store(tmp_path / "runs", {"env": {"library": "gymnax", "name": "\x1b<script>$\\frac{$"}}, "run")
        (folder / "metrics.csv").write_text(f"{HEADER}1,2,3,4\n")
        os.rename(os.fsencode(folder), os.fsencode(tmp_path / "runs") + b"/" + name)
    monkeypatch.setattr("sys.argv", ["evorl", "report", str(tmp_path / "runs"), f"to={tmp_path / 'a.html'}"])
    commands.main()
    assert r"\udcff" in (tmp_path / "a.html").read_text(encoding="utf-8")

    async def answers() -> list[bytes]:
        runs = WatchedRuns([str(tmp_path / "runs")])
        runs.refresh()
        async with serving(LivePage(runs, MetricsStore())) as address:
            paths = (b"/", b"/metrics", b"/api/runs", b"/api/scalars?run=0&name=train/loss")
            head = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            return [await all_it_says(int(address.rpartition(":")[2]), b"GET " + path + head) for path in paths]

    for answer in asyncio.run(answers()):
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]


ROWS = ["setting,agent.clip_epsilon,timesteps,eval_return", "0,0.1,1000,2.0", "1,0.2,1000,3.0"]


@pytest.mark.parametrize("table", ["sweep.csv", "evaluations.csv", "search.csv"])
@pytest.mark.parametrize(
    "damage", ["cut", "no setting", "text", "long row", "twice", "open quote", "long cell", "empty"]
)
def test_tables_of_a_sweep_that_are_damaged(
    table: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from evorl.cli import commands

    folder = RunFolder(store(tmp_path / "runs", {"sweep": {"agent.clip_epsilon": [0.1, 0.2]}}))
    place = {
        "sweep.csv": folder.sweep_table,
        "evaluations.csv": folder.sweep_evaluations,
        "search.csv": folder.search_table,
    }[table]
    rows = {
        "cut": [ROWS[0], ROWS[1][:3]],
        "no setting": [ROWS[0].replace("setting", "other"), *ROWS[1:]],
        "text": [ROWS[0], ROWS[1].replace("0,", "abc,", 1).replace("1000", "many")],
        "long row": [ROWS[0], f"{ROWS[1]},1,2"],
        "twice": [f"{ROWS[0]},timesteps", f"{ROWS[1]},7"],
        "open quote": [ROWS[0], f'"{ROWS[1]}'],
        "long cell": [ROWS[0], ROWS[1].replace("2.0", "9" * 200_000)],
        "empty": [],
    }[damage]
    for path in (folder.sweep_table, folder.sweep_evaluations):
        path.write_text("\n".join(ROWS) + "\n")
    place.write_text("".join(f"{row}\n" for row in rows))
    runs = str(tmp_path / "runs")
    for command in (("runs", runs), ("report", runs, f"to={tmp_path / 'a.html'}"), ("evaluate", f"run={folder.path}")):
        monkeypatch.setattr("sys.argv", ["evorl", *command])
        with contextlib.suppress(SystemExit):
            commands.main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err


def test_the_rows_above_are_those_of_a_table() -> None:
    assert [row["eval_return"] for row in csv.DictReader(ROWS)] == ["2.0", "3.0"]
