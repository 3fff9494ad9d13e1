"""With random damage, every restore is exact, rejected or skipped with a notice, and never returns another state."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.structure import CheckpointError

STEPS = (1, 2, 3)
TEMPLATE = {"large": np.zeros(2**18 + 7, np.float32), "small": np.zeros(1000), "count": np.int32(0)}
TRIALS = 96


def make_state(step: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(step)
    state = {"large": generator.random(2**18 + 7, np.float32), "small": generator.random(1000)}
    return {**state, "count": np.asarray(step, np.int32)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder of three checkpoints, the second with the best score."""
    checkpointer = RunCheckpointer(tmp_path_factory.mktemp("whole"))
    for step in STEPS:
        checkpointer.save(make_state(step), {"iterations": step, "means": [step]}, score=float(step == 2))
    return checkpointer.folder


def damage(folder: Path, chance: random.Random) -> str:
    """Damage one file or folder of checkpoints; return a description."""
    kind = chance.choice(("flip", "zero", "cut", "lengthen", "delete", "swap", "rename", "link", "empty"))
    path = chance.choice([path for path in sorted(folder.glob("*/**/*")) if path.is_file()])
    checkpoint = folder / path.relative_to(folder).parts[0]
    data = bytearray(path.read_bytes())
    where = chance.randrange(max(1, len(data)))
    if kind == "delete":
        path.unlink()
    elif kind == "swap":  # a file of any checkpoint, possibly the same
        path.write_bytes(chance.choice(sorted(folder.glob(f"*/**/{path.name}"))).read_bytes())
    elif kind == "rename":
        checkpoint.rename(folder / chance.choice(("99999999", "0", "4")))
    elif kind == "link":
        target = folder.parent / f"elsewhere-{where}"
        path.rename(target)
        path.symlink_to(target)
    elif kind == "empty":
        shutil.rmtree(chance.choice((checkpoint, checkpoint / "state")))
    else:
        if kind == "flip" and data:
            data[where] ^= 1 << chance.randrange(8)
        elif kind == "zero":
            data[where : where + 512] = bytes(len(data[where : where + 512]))
        elif kind == "cut":
            del data[where:]
        elif kind == "lengthen":
            data += chance.randbytes(8)
        path.write_bytes(data)
    return f"{kind} {path.relative_to(folder)} at {where}"


def restore(folder: Path, which: str | int) -> tuple[int | None, str]:
    """Return the restored iteration, whose state must be exact, or ``None``; and the messages."""
    checkpointer = RunCheckpointer(folder)
    try:
        state, progress = checkpointer.restore(TEMPLATE, which)
    except CheckpointError as error:
        return None, str(error)
    step = progress["iterations"]
    assert progress == {"iterations": step, "means": [step]}
    for name, leaf in make_state(step).items():
        np.testing.assert_array_equal(state[name], leaf)
    return step, " ".join(checkpointer.notices)


def test_no_damage_is_believed(whole: Path, tmp_path: Path) -> None:
    outcomes = {"exact": 0, "passed over": 0, "refused": 0}
    for seed in range(TRIALS):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(whole, folder)
        damages = [damage(folder, chance) for _ in range(chance.choice((1, 1, 1, 3)))]
        which = chance.choice(("latest", "latest", "best", 2))
        first_choice = 3 if which == "latest" else 2
        was_removed = not (folder / str(first_choice)).is_dir()  # or renamed: it is no longer known
        step, message = restore(folder, which)
        if step == first_choice:
            outcomes["exact"] += 1
        else:
            outcomes["refused" if step is None else "passed over"] += 1
            assert " is corrupted: " in message or "There is no checkpoint 2" in message or was_removed, damages
    assert min(outcomes.values()) >= 8, outcomes  # names of a checkpoint's files are random, so the damage varies
