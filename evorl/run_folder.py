"""The folder of one run: where its config, metrics, checkpoints, picture and log lie, and how to find it again."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import errno
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

_REASONS = {
    errno.ENOSPC: ("no space is left on its disk", "free some space"),
    errno.EDQUOT: ("the disk quota is used up", "free some space"),
    errno.EROFS: ("its disk is read-only", "choose a folder that can be written"),
    errno.EACCES: ("permission is denied", "choose a folder that you may write"),
    errno.EPERM: ("permission is denied", "choose a folder that you may write"),
    errno.EIO: ("its disk reports an input/output error", "choose a folder on another disk"),
    errno.ENOTDIR: ("a part of its path is a file", "choose another folder"),
    errno.EEXIST: ("a file of that name is in the way", "choose another folder"),
}
# Libraries below report some of these only in the text of an error of their own.
_REASONS_IN_TEXT = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "Permission denied": errno.EACCES,
    "Input/output error": errno.EIO,
}


ALIKE = 0.6  # names from this likeness on are named first


class RunFolderError(OSError):
    """A run folder is missing, is none, or cannot be written; the message says what to do."""


@contextlib.contextmanager
def writing_to(folder: Path | str) -> Iterator[None]:
    """Turn a failure to write into ``folder`` into one clear sentence.

    Raises:
        RunFolderError: the disk is full or read-only, permission is denied, and the like.
    """
    try:
        yield
    except RunFolderError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        code = getattr(error, "errno", None)
        if code not in _REASONS:
            code = next((number for text, number in _REASONS_IN_TEXT.items() if text in str(error)), code)
        if code not in _REASONS and not isinstance(error, OSError):
            raise
        reason, remedy = _REASONS[code] if code in _REASONS else (str(error), "choose another folder")
        raise RunFolderError(
            f"Cannot write to {folder}: {reason}. What it holds is kept: {remedy}, then resume or start again."
        ) from error


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The paths of one run.

    Attributes:
        path: the folder itself.
    """

    path: Path

    @property
    def config(self) -> Path:
        """The composed config, YAML. A folder that has one is a run folder."""
        return self.path / "config.yaml"

    @property
    def metrics_csv(self) -> Path:
        """Metrics that do not depend on the machine's speed, a row per record."""
        return self.path / "metrics.csv"

    @property
    def metrics_jsonl(self) -> Path:
        """All metrics, timings too, a JSON object per record."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard events."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def learning_curve(self) -> Path:
        """The picture of the learning curve, PNG."""
        return self.path / "learning_curve.png"

    @property
    def log(self) -> Path:
        """What was said during the run, with times."""
        return self.path / "run.log"

    @classmethod
    def create(cls, root: Path | str, config: Any, name: str | None = None) -> Self:
        """Make a run folder below ``root`` and store the config in it.

        Args:
            root: the folder of all runs, made when missing.
            config: the composed config: an OmegaConf node, a mapping, or YAML text.
            name: the folder's name; by default the time, with a number behind it when two runs start in one second.

        Raises:
            RunFolderError: ``name`` holds a run already, or the folder cannot be written.
        """
        with writing_to(root):
            Path(root).mkdir(parents=True, exist_ok=True)
            path = Path(root) / name if name else _new_folder(Path(root))
            folder = cls(path.resolve())
            if folder.config.exists():
                raise RunFolderError(f"{path} holds a run already: resume it (resume={path}), or choose another name.")
            path.mkdir(parents=True, exist_ok=True)
            folder.config.write_text(_as_yaml(config), encoding="utf-8")
        return folder

    @classmethod
    def open(cls, path: Path | str, root: Path | str | None = None) -> Self:
        """The run folder at ``path``; if there is none, its like are looked for below ``root`` too.

        Raises:
            RunFolderError: there is nothing there, or it is no run folder; the nearest ones are named.
        """
        folder = cls(Path(path).expanduser().resolve())
        if not folder.path.is_dir():
            problem = f"There is no folder {path}."
        elif not folder.config.is_file():
            problem = f"{path} is no run folder: it has no {folder.config.name}."
        else:
            return folder
        raise RunFolderError(f"{problem} {_neighbours(folder.path, Path(root) if root else None)}")

    @classmethod
    def latest(cls, root: Path | str) -> Self:
        """The run below ``root``, at any depth, whose newest checkpoint is the newest.

        Raises:
            RunFolderError: no run below ``root`` has a checkpoint.
        """
        found = [cls(config.parent.resolve()) for config in Path(root).expanduser().rglob("config.yaml")]
        saved = [(folder.saved_at, folder.path.as_posix(), folder) for folder in found if folder.saved_at is not None]
        if not saved:
            held = f"{len(found)} runs without one" if found else "no runs"
            raise RunFolderError(f"No run with a checkpoint lies below {root} ({held}): start a run without resume.")
        return max(saved)[-1]

    @classmethod
    def find(cls, which: Path | str, root: Path | str) -> Self:
        """What ``resume=<which>`` means: ``latest``, a path, or the name of a run below ``root``.

        Raises:
            RunFolderError: nothing fits.
        """
        if str(which) == "latest":
            return cls.latest(root)
        below = Path(root) / which
        return cls.open(below if not Path(which).exists() and below.is_dir() else which, root)

    @property
    def saved_at(self) -> float | None:
        """The time of the newest checkpoint, in seconds since 1970; ``None`` without one."""
        times = [progress.stat().st_mtime for progress in self.checkpoints.glob("[0-9]*/progress.json")]
        return max(times, default=None)

    def update_config(self, config: Any) -> None:
        """Store another config; the one before is kept as ``config.<n>.yaml``, the first as 1.

        Raises:
            RunFolderError: the folder cannot be written; the config before is kept.
        """
        text = _as_yaml(config)
        if text == _as_yaml(self.load_config()):
            return
        with writing_to(self.path):
            new = self.path / ".config.yaml.new"
            new.write_text(text, encoding="utf-8")
            shutil.copyfile(self.config, self.path / f"config.{_free_number(self.path)}.yaml")
            new.replace(self.config)  # at once: a kill leaves the one or the other

    def load_config(self) -> Any:
        """The stored config as an OmegaConf node.

        Raises:
            RunFolderError: the file cannot be read as YAML.
        """
        from omegaconf import OmegaConf

        try:
            return OmegaConf.load(self.config)
        except (OSError, ValueError, SyntaxError) as error:
            raise RunFolderError(f"{self.config} cannot be read: {error}.") from error
        except Exception as error:  # the YAML reader's errors share no base class with the above
            raise RunFolderError(f"{self.config} is no valid YAML: {error}.") from error


def _free_number(folder: Path) -> int:
    taken = [int(path.stem.split(".")[1]) for path in folder.glob("config.[0-9]*.yaml") if path.stem[7:].isdigit()]
    return max(taken, default=0) + 1


def _new_folder(root: Path) -> Path:
    base = time.strftime("%Y-%m-%d_%H-%M-%S")
    for number in range(1, 10_000):
        path = root / (base if number == 1 else f"{base}_{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()  # claims the name: two runs started at once do not share a folder
            return path
    raise RunFolderError(f"{root} has thousands of runs of this second: choose another folder.")


def _as_yaml(config: Mapping | str | Any) -> str:
    if isinstance(config, str):
        return config
    from omegaconf import OmegaConf

    node = config if OmegaConf.is_config(config) else OmegaConf.create(dict(config))
    return OmegaConf.to_yaml(node, resolve=True)


def _neighbours(path: Path, root: Path | None = None) -> str:
    """A sentence that names run folders near a path, like-named ones first.

    They are looked for beside the path, within it, and below ``root``; two levels deep, since runs lie in a folder for
    each algorithm and environment.
    """
    parent = next((folder for folder in path.parents if folder.is_dir()), Path("/"))
    nearby: dict[Path, float] = {}
    for place in (path, parent, *([root.expanduser().resolve()] if root else [])):
        for pattern in ("*/config.yaml", "*/*/config.yaml"):
            nearby |= {config.parent: _likeness(path, config.parent, place) for config in place.glob(pattern)}
    if not nearby:
        return f"{parent} holds no runs either: name a run folder, or resume=latest."
    newest = sorted(nearby, key=lambda run: [int(n) for n in re.findall(r"\d+", run.name)], reverse=True)
    alike = sorted((run for run in newest if nearby[run] >= ALIKE), key=lambda run: -nearby[run])
    kind = "Like-named runs" if alike else "Runs nearby"
    return f"{kind}: {', '.join(str(run) for run in (alike or newest)[:3])}."


def _likeness(wanted: Path, run: Path, place: Path) -> float:
    """From 0 to 1: of the names, of the wanted name and that of the run's group, and of the ways from ``place``."""
    pairs = [(wanted.name, run.name), (wanted.name, run.parent.name if run.parent != place else "")]
    if wanted.is_relative_to(place):
        pairs.append((str(wanted.relative_to(place)), str(run.relative_to(place))))
    return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
