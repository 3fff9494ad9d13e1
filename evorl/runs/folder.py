"""Paths of one run's files (config, metrics, checkpoints, plots, log), and the search for run folders."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from evorl.config.command_lines import as_arguments, user_path
from evorl.config.gate import mark_untrusted
from evorl.ops.processes import decided_by_first, is_first
from evorl.runs.files import (
    MANIFEST,
    PRIVATE,
    RunFolderError,
    make_folder,
    refuse_link,
    replacing,
    write_atomically,
    writing_to,
)
from evorl.runs.trust import read_stored_config, refuse_foreign_code

CHECKPOINTS = "checkpoints"
WITH_PARTS = f"**/{CHECKPOINTS}"  # pattern that also finds the checkpoints of a sweep's parts and of a search's trials
ALIKE = 0.6  # minimum similarity, from 0 to 1, of names that are suggested


class _Inside:
    """Path of a file or folder in a run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, owner: type) -> Path:
        return folder.path / self._name


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Paths of one run.

    Attributes:
        path: the run folder.
        config: the composed config, YAML; a folder with this file is a run folder.
        metrics_csv: the metrics without timings, CSV, one line per row of metrics.
        metrics_jsonl: all metrics, including timings, JSON Lines, one object per row of metrics.
        tensorboard: the folder of TensorBoard events.
        checkpoints: the folder of checkpoints.
        replay: common path of the two files of a saved replay buffer, without ``.npz`` and ``.json``.
        learning_curve: the plot of the learning curve, PNG.
        eval_goals: the goals of evaluation episodes, CSV, one line per episode.
        episodes: the folder of saved evaluation episodes, see ``evorl.episodes.saved_episode``.
        plots: the folder of plotted evaluation episodes, PNG, see ``evorl.recorders.projection_recorder``.
        about: a JSON file about each start of the run: command, versions, devices; see ``evorl.runs.about``.
        state: the status of the run, JSON, see ``evorl.runs.run_state``.
        videos: the folder of animations, see ``evorl.rendering``.
        sweep_table: the results of all settings, CSV; only a run with ``sweep=`` has this file.
        sweep_evaluations: all evaluations of all settings, CSV; only a run with ``sweep=`` has this file.
        search_table: the results of all trials, CSV; only a run with ``search=`` has this file.
        log: the messages of the run, with times.
    """

    path: Path
    config = _Inside("config.yaml")
    metrics_csv = _Inside("metrics.csv")
    metrics_jsonl = _Inside("metrics.jsonl")
    tensorboard = _Inside("tensorboard")
    checkpoints = _Inside(CHECKPOINTS)
    replay = _Inside("replay")
    learning_curve = _Inside("learning_curve.png")
    eval_goals = _Inside("eval_goals.csv")
    episodes = _Inside("episodes")
    plots = _Inside("plots")
    about = _Inside("about.json")
    state = _Inside("state.json")
    videos = _Inside("videos")
    sweep_table = _Inside("sweep.csv")
    sweep_evaluations = _Inside("evaluations.csv")
    search_table = _Inside("search.csv")
    log = _Inside("run.log")

    @classmethod
    def create(cls, root: Path | str, config: Any, name: str | None = None) -> Self:
        """Create a run folder below ``root`` that only its user can enter, and store the config in it.

        A folder that exists and is not empty keeps its permissions. With several processes, only the first one writes.

        Args:
            root: folder of all runs, created if missing.
            config: the composed config: an OmegaConf node, a mapping, or YAML text.
            name: name of the new folder; ``None`` for the current time, with a number if it is already taken.

        Raises:
            RunFolderError: ``name`` is already a run, or the folder cannot be written.
        """
        return cls(Path(decided_by_first(lambda: str(cls._make(user_path(root), _as_yaml(config), name).path))))

    @classmethod
    def _make(cls, root: Path, text: str, name: str | None) -> Self:
        with writing_to(root):
            root.mkdir(parents=True, exist_ok=True)
            path = root / name if name else new_folder(root)
            folder = cls(path.resolve())
            if folder.config.exists():
                raise RunFolderError(
                    f"{path} already contains a run: resume it ({as_arguments({'resume': path})}), or choose another "
                    "name."
                )
            make_folder(folder.path, PRIVATE)
            if not any(folder.path.iterdir()):
                folder.path.chmod(PRIVATE)  # Hydra may have created it, for hydra.run.dir
            write_atomically(folder.config, text)
        return folder

    @classmethod
    def open(cls, path: Path | str, root: Path | str | None = None) -> Self:
        """Return the run folder at ``path``; the error for a missing one suggests others nearby and below ``root``.

        Raises:
            RunFolderError: the folder does not exist or is not a run folder.
        """
        folder = cls(user_path(path).resolve())
        if folder.path.is_file():
            play, start = (as_arguments({name: path}) for name in ("run", "init_from"))
            problem = f"{path} is a file. Evaluate a packed policy (.zip) with {play}, or train from it with {start}."
        elif not folder.path.is_dir():
            problem = f"There is no folder {path}."
        elif not folder.config.is_file():
            problem = f"{path} is not a run folder: it has no {folder.config.name}."
        else:
            return folder
        raise RunFolderError(f"{problem} {_neighbors(folder.path, Path(root) if root else None)}")

    @classmethod
    def latest(cls, root: Path | str, checkpoints: str = CHECKPOINTS) -> Self:
        """Return the run with the most recent checkpoint below ``root``, at any depth; see also ``saved_at``.

        Raises:
            RunFolderError: no run below ``root`` has a checkpoint.
        """
        configs = list(user_path(root).rglob("config.yaml"))
        newest = cls._newest(configs, checkpoints)
        if newest is None:
            instead = f"runs without checkpoints: {len(configs)}" if configs else "no runs"
            raise RunFolderError(
                f"There is no run with a checkpoint in {root} ({instead}): start a new one with evorl train."
            )
        return newest

    @classmethod
    def _newest(cls, configs: Iterable[Path], checkpoints: str) -> Self | None:
        """Return the run with the most recent checkpoint, given paths of configs; ``None`` without checkpoints."""
        runs = [cls(config.parent.resolve()) for config in configs]
        saved = [(at, run.path.as_posix(), run) for run in runs if (at := run.saved_at(checkpoints)) is not None]
        return max(saved)[-1] if saved else None

    @classmethod
    def find(cls, which: Path | str, root: Path | str, checkpoints: str = CHECKPOINTS) -> Self:
        """Return the run that ``which`` names: ``latest``, a path, or the name of a run below ``root``.

        In a folder of runs, such as ``runs/ppo-cartpole`` or ``runs``, find the run with the most recent checkpoint.

        Raises:
            RunFolderError: no folder matches, or the folder of runs (``root`` for ``latest``) has no checkpoint.
        """
        if str(which) == "latest":
            return cls.latest(root, checkpoints)
        folder, below = user_path(which), user_path(Path(root) / which)
        folder = below if not folder.exists() and below.is_dir() else folder
        is_group = folder.is_dir() and not (folder / "config.yaml").is_file()
        return (is_group and cls._newest(_configs_in(folder), checkpoints)) or cls.open(folder, root)

    def saved_at(self, checkpoints: str = CHECKPOINTS) -> float | None:
        """Return the time of the newest checkpoint in seconds since 1970; ``None`` without checkpoints."""
        times = []
        for manifest in self.path.glob(f"{checkpoints}/[0-9]*/{MANIFEST}"):
            with contextlib.suppress(FileNotFoundError):  # a training run has removed this checkpoint
                times.append(manifest.stat().st_mtime)
        return max(times, default=None)

    def refuse_links(self) -> None:
        """Reject symbolic links in the run folder and in the folders that a run writes; call before resuming a run.

        Raises:
            RunFolderError: a file or folder directly in one of these folders is a symbolic link.
        """
        folders = (self.path, self.checkpoints, self.tensorboard, self.episodes, self.plots, self.videos)
        for path in (path for folder in folders for path in folder.glob("*")):
            refuse_link(path)

    def update_config(self, config: Any) -> None:
        """Replace the stored config, if it differs; keep the previous one as ``config.<n>.yaml``, n = 1, 2, ...

        If there are several processes, only the first one writes.

        Raises:
            RunFolderError: the stored config is invalid, or the folder cannot be written; the old config is kept.
        """
        text = _as_yaml(config)
        if not is_first() or text == _as_yaml(self.load_config(trust=True)):
            return
        with writing_to(self.path), replacing(self.config, "w") as new:  # atomic, even if the process is killed
            new.write(text)
            used = [path.stem.removeprefix("config.") for path in self.path.glob("config.[0-9]*.yaml")]
            number = max((int(text) for text in used if text.isdigit()), default=0) + 1
            write_atomically(self.path / f"config.{number}.yaml", self.config.read_bytes())

    def load_config(self, trust: bool = False) -> Any:
        """Return the stored config as an OmegaConf node without interpolations, which were resolved before storing.

        Args:
            trust: True if the config may name code outside evorl. If False, such names are rejected, and the config is
                marked as untrusted: workflows and environments built from the config, or from a copy or part, may load
                code outside evorl only where the caller has changed the name in the config.

        Raises:
            RunFolderError: the file is not plain YAML; or ``trust`` is False, and the config names code outside evorl.
        """
        config = read_stored_config(self.config)
        if not trust:
            refuse_foreign_code(config, self.path)
            mark_untrusted(config, f"the config in {self.path}")
        return config


def new_folder(root: Path, prefix: str = "") -> Path:
    """Create a folder below ``root`` named ``prefix`` + current time, with a number if this exists; return it.

    Raises:
        RunFolderError: the names with all numbers below 10,000 exist.
    """
    base = prefix + time.strftime("%Y-%m-%d_%H-%M-%S")
    for number in range(1, 10_000):
        path = root / (base if number == 1 else f"{base}_{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=PRIVATE)  # reserves the name: two runs that start simultaneously do not share a folder
            return path
    raise RunFolderError(f"{root} has thousands of runs that started in this second: choose another folder.")


def _as_yaml(config: Mapping | str | Any) -> str:
    if isinstance(config, str):
        return config
    from omegaconf import OmegaConf

    node = config if OmegaConf.is_config(config) else OmegaConf.create(dict(config))
    return OmegaConf.to_yaml(node, resolve=True)


def _neighbors(path: Path, root: Path | None = None) -> str:
    """Return a sentence that names up to three run folders near a path: similarly named ones, else the newest.

    The search covers the path, its closest existing parent folder and ``root``, two levels deep, because runs are in
    one folder per algorithm and environment.
    """
    parent = next((folder for folder in path.parents if folder.is_dir()), Path("/"))
    nearby: dict[Path, float] = {}
    for folder in (path, parent, *([user_path(root).resolve()] if root else [])):
        nearby |= {config.parent: _likeness(path, config.parent, folder) for config in _configs_in(folder)}
    if not nearby:
        return f"{parent} contains no runs either: pass the path of a run folder, or latest."
    newest = sorted(nearby, key=lambda run: [int(n) for n in re.findall(r"\d+", run.name)], reverse=True)
    alike = sorted((run for run in newest if nearby[run] >= ALIKE), key=lambda run: -nearby[run])
    kind = "Similarly named runs" if alike else "Nearby runs"
    return f"{kind}: {', '.join(str(run) for run in (alike or newest)[:3])}."


def _configs_in(folder: Path) -> list[Path]:
    """Return the configs of the runs at most two levels below a folder."""
    patterns = ("*/config.yaml", "*/*/config.yaml")
    return [config for pattern in patterns for config in folder.glob(pattern) if config.is_file()]


def _likeness(path: Path, run: Path, folder: Path) -> float:
    """Return the similarity of a path to a run, from 0 to 1.

    This is the largest similarity between their names, between the path's name and the run's group, and between the two
    paths relative to ``folder``.
    """
    pairs = [(path.name, run.name), (path.name, run.parent.name if run.parent != folder else "")]
    if path.is_relative_to(folder):
        pairs.append((str(path.relative_to(folder)), str(run.relative_to(folder))))
    return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)


def trial_name(number: int) -> str:
    """Return the name of the run folder of a search's trial, counted from 0; repeated runs append ``_2``, ``_3``..."""
    return f"trial_{number:04d}"
