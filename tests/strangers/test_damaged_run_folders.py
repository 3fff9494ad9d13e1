"""Damaged run folders, and those full of links, cause one error message; nothing is written elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evorl.runs.folder import RunFolder
from tests.strangers.conftest import Refused
from tests.strangers.test_run_folders import store

COMMANDS = (("evaluate", "run="), ("train", "resume="))
BOMB = "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*{before}, *{before}]\n" for i, before in enumerate(["a", "b0", "b1"]))
TEXTS = {
    "empty": "",
    "null": "null",
    "a number": "7",
    "a list": "- 1\n- 2",
    "cut": "a: [1",
    "tabs": "a:\n\t- 1",
    "twice": "seed: 1\nseed: 2",
    "a tag": "a: !!python/object/apply:os.system [exit]",
    "a tag of the library": "a: !!python/name:os.system",
    "an anchor": "a: &a [1]\nb: *a",
    "aliases of aliases": BOMB,
    "merged": "a: &a {b: 1}\nc:\n  <<: *a",
    "deep lists": "a: " + "[" * 100_000,
    "deep mappings": "a: " + "{a: " * 10_000,
    "deep indents": "\n".join(f"{' ' * i}a{i}:" for i in range(1000)),
    "an interpolation": "a: ${oc.env:HOME}",
    "two documents": "a: 1\n---\nb: 2",
    "zeros": "\0\0\0\0",
    "a key that is none": "? [1, 2]\n: 3",
    "a huge number": "seed: " + "9" * 5000,
    "half a surrogate pair": 'title: "\\ud800"',
    "nothing of a run": "a: 1",
}
WRONG: tuple[Any, ...] = (None, [], {}, "", "\x1b]0;x\x07", -1, 1e300, [[1]], {"a": {"b": 1}}, True)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize(("command", "which"), COMMANDS)
def test_a_damaged_config_is_one_sentence(
    command: str, which: str, text: str, tmp_path: Path, refused: Refused
) -> None:
    folder = store(tmp_path, {})
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    message = refused(command, f"{which}{folder}")
    assert "config.yaml" in message
    assert len(message) < 5000


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize(
    "key", ["workflow", "env", "seed", "recorders", "checkpoints_kept", "evaluation", "devices", "agent"]
)
def test_a_wrong_value_is_one_sentence(key: str, value: Any, tmp_path: Path, refused: Refused) -> None:
    folder = store(tmp_path, {key: value})
    message = refused("evaluate", f"run={folder}")
    assert "\x1b" not in message


LINKS = (
    *("metrics.csv metrics.jsonl run.log state.json about.json learning_curve.png eval_goals.csv replay.npz".split()),
    *("checkpoints/5 checkpoints/best tensorboard/events episodes/1.npz plots/1.png videos/render.log".split()),
    *("checkpoints tensorboard episodes plots videos config.1.yaml".split()),
)


@pytest.mark.parametrize("is_there", [True, False], ids=["to a file", "to nothing"])
@pytest.mark.parametrize("name", LINKS)
def test_links_are_refused_before_anything_is_written(
    name: str, is_there: bool, tmp_path: Path, refused: Refused
) -> None:
    folder, target = store(tmp_path, {}), tmp_path / "precious"
    if is_there:
        target.write_text("mine")
    link = folder / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)
    assert "is a symbolic link" in refused("train", f"resume={folder}")
    assert target.exists() is is_there
    assert not is_there or target.read_text() == "mine"


def test_a_folder_of_plain_data_is_read(tmp_path: Path) -> None:
    folder = RunFolder(store(tmp_path, {"title": "a: b", "label": "µ"}))
    assert folder.load_config().label == "µ"
