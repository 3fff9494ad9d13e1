"""The folder of one run: where its config, metrics, checkpoints, picture and log lie, and how to find it again."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from evorl.config.command_lines import as_arguments, user_path
from evorl.config.gate import mark_untrusted
from evorl.ops.processes import decided_by_first, is_first
from evorl.runs.files import (
    PRIVATE,
    RunFolderError,
    make_folder,
    open_to_write,
    refuse_link,
    write_atomically,
    write_text,
    writing_to,
)
from evorl.runs.manifest import MANIFEST
from evorl.runs.trust import read_stored_config, refuse_foreign_code

ALIKE = 0.6  # names from this likeness on are named first


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
    def replay(self) -> Path:
        """The saved replay buffer, without the endings ``.npz`` and ``.json``."""
        return self.path / "replay"

    @property
    def learning_curve(self) -> Path:
        """The picture of the learning curve, PNG."""
        return self.path / "learning_curve.png"

    @property
    def eval_goals(self) -> Path:
        """The goals of evaluations, a row per episode, CSV."""
        return self.path / "eval_goals.csv"

    @property
    def episodes(self) -> Path:
        """The folder of episodes of evaluations, see ``evorl.runs.saved_episode``."""
        return self.path / "episodes"

    @property
    def plots(self) -> Path:
        """The folder of pictures of evaluations."""
        return self.path / "plots"

    @property
    def about(self) -> Path:
        """What started the run each time: command, versions, device; see ``evorl.runs.about``."""
        return self.path / "about.json"

    @property
    def state(self) -> Path:
        """Whether the run goes on and how it ended, see ``evorl.runs.run_state``."""
        return self.path / "state.json"

    @property
    def videos(self) -> Path:
        """The folder of moving pictures, see ``evorl.rendering``."""
        return self.path / "videos"

    @property
    def sweep_table(self) -> Path:
        """What every setting of a sweep comes to, CSV; where there is one, the folder is that of a sweep."""
        return self.path / "sweep.csv"

    @property
    def sweep_evaluations(self) -> Path:
        """Every evaluation of every setting of a sweep, CSV."""
        return self.path / "evaluations.csv"

    @property
    def search_table(self) -> Path:
        """What every trial of a search comes to, CSV; where there is one, the folder is that of a search."""
        return self.path / "search.csv"

    @property
    def log(self) -> Path:
        """What was said during the run, with times."""
        return self.path / "run.log"

    @classmethod
    def create(cls, root: Path | str, config: Any, name: str | None = None) -> Self:
        """Make a run folder below ``root``, which only its user can enter, and store the config in it.

        Of several processes the first makes it.

        Args:
            root: the folder of all runs, made when missing.
            config: the composed config: an OmegaConf node, a mapping, or YAML text.
            name: the folder's name; by default the time, with a number behind it when two runs start in one second.

        Raises:
            RunFolderError: ``name`` holds a run already, or the folder cannot be written.
        """
        return cls(Path(decided_by_first(lambda: str(cls._make(user_path(root), config, name).path))))

    @classmethod
    def _make(cls, root: Path, config: Any, name: str | None) -> Self:
        with writing_to(root):
            root.mkdir(parents=True, exist_ok=True)
            path = root / name if name else new_folder(root)
            folder = cls(path.resolve())
            if folder.config.exists():
                raise RunFolderError(
                    f"{path} holds a run already: resume it ({as_arguments({'resume': path})}), or choose another name."
                )
            make_folder(folder.path, PRIVATE)
            if not any(folder.path.iterdir()):
                folder.path.chmod(PRIVATE)  # Hydra may have made it, for hydra.run.dir
            write_atomically(folder.config, _as_yaml(config))
        return folder

    @classmethod
    def open(cls, path: Path | str, root: Path | str | None = None) -> Self:
        """The run folder at ``path``; if there is none, its like are looked for below ``root`` too.

        Raises:
            RunFolderError: there is nothing there, or it is no run folder; the nearest ones are named.
        """
        folder = cls(user_path(path).resolve())
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
        runs = [cls(config.parent.resolve()) for config in user_path(root).rglob("config.yaml")]
        saved = [(run.saved_at, run.path.as_posix(), run) for run in runs if run.saved_at is not None]
        if not saved:
            instead = f"{len(runs)} runs without one" if runs else "no runs"
            raise RunFolderError(f"No run with a checkpoint lies below {root} ({instead}): start a run without resume.")
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
        times = [manifest.stat().st_mtime for manifest in self.checkpoints.glob(f"[0-9]*/{MANIFEST}")]
        return max(times, default=None)

    def refuse_links(self) -> None:
        """Look for symbolic links where a run writes; to be asked before the run goes on.

        Raises:
            RunFolderError: there is one.
        """
        folders = (self.path, self.checkpoints, self.tensorboard, self.episodes, self.plots, self.videos)
        for path in (path for folder in folders for path in folder.glob("*")):
            refuse_link(path)

    def update_config(self, config: Any) -> None:
        """Store another config; the one before is kept as ``config.<n>.yaml``, the first as 1.

        Of several processes the first does.

        Raises:
            RunFolderError: the folder cannot be written; the config before is kept.
        """
        text = _as_yaml(config)
        if not is_first() or text == _as_yaml(self.load_config(trust=True)):
            return
        with writing_to(self.path):
            new = self.path / ".config.yaml.new"
            write_text(new, text)
            with open_to_write(self.path / f"config.{_free_number(self.path)}.yaml", "wb") as file:
                file.write(self.config.read_bytes())
            new.replace(self.config)  # at once: a kill leaves the one or the other

    def load_config(self, trust: bool = False) -> Any:
        """The stored config as an OmegaConf node. It is plain data: references were resolved when it was stored.

        Args:
            trust: whether it may name code from outside this package. Otherwise it is marked: a workflow or an
                environment built from it, from a copy or from a part of it, loads no such code either, except by names
                that were changed since.

        Raises:
            RunFolderError: the file cannot be read as plain YAML, or names such code; see ``evorl.runs.trust``.
        """
        config = read_stored_config(self.config)
        if not trust:
            refuse_foreign_code(config, self.path)
            mark_untrusted(config, f"the config in {self.path}")
        return config


def _free_number(folder: Path) -> int:
    numbers = [int(path.stem.split(".")[1]) for path in folder.glob("config.[0-9]*.yaml") if path.stem[7:].isdigit()]
    return max(numbers, default=0) + 1


def new_folder(root: Path, prefix: str = "") -> Path:
    """Make a folder below ``root`` that goes by the time, with a number behind it where that is taken.

    Raises:
        RunFolderError: thousands of them are.
    """
    base = prefix + time.strftime("%Y-%m-%d_%H-%M-%S")
    for number in range(1, 10_000):
        path = root / (base if number == 1 else f"{base}_{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=PRIVATE)  # claims the name: two runs started at once do not share a folder
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
    for place in (path, parent, *([user_path(root).resolve()] if root else [])):
        for pattern in ("*/config.yaml", "*/*/config.yaml"):
            nearby |= {config.parent: _likeness(path, config.parent, place) for config in place.glob(pattern)}
    if not nearby:
        return f"{parent} holds no runs either: name a run folder, or resume=latest."
    newest = sorted(nearby, key=lambda run: [int(n) for n in re.findall(r"\d+", run.name)], reverse=True)
    alike = sorted((run for run in newest if nearby[run] >= ALIKE), key=lambda run: -nearby[run])
    kind = "Like-named runs" if alike else "Runs nearby"
    return f"{kind}: {', '.join(str(run) for run in (alike or newest)[:3])}."


def _likeness(path: Path, run: Path, place: Path) -> float:
    """From 0 to 1: of the names, of the name and that of the run's group, and of the ways from ``place``."""
    pairs = [(path.name, run.name), (path.name, run.parent.name if run.parent != place else "")]
    if path.is_relative_to(place):
        pairs.append((str(path.relative_to(place)), str(run.relative_to(place))))
    return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
