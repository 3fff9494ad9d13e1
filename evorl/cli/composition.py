"""Composes run configs for the command line, notebooks and sweeps, from Hydra's config tree and class defaults.

A config file that names its ``workflow`` lists only settings that differ from the defaults of that class; the others
are added when the file is read. Two short forms are Hydra config groups, and thus available wherever Hydra composes:
``inner=sac`` and ``learner=sac`` choose a file of ``configs/agent`` for a section of the config, and ``optimizer=sgd``
is ``optimizer.name=sgd``. Tuned settings are found by the short and the long name of an environment: ``env=hopper`` and
``env=brax/hopper`` share them.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf

from evorl.assembly import OF_SCHEDULES, complete_config, workflow_class
from evorl.cli.arguments import NAMED
from evorl.cli.config_tree import AGENT_PARTS, config_folder, refuse_hidden_files, settings_file
from evorl.cli.default_lists import Inclusions
from evorl.config.names import is_custom_name, load_named
from evorl.config.nodes import completed_node, default_of, described_node
from evorl.config.values import plain, short_repr
from evorl.config.yaml_text import read_text_file, read_yaml
from evorl.ec.archives import Archive
from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.optimizers import OPTIMIZERS
from evorl.envs.libraries import HOST_LIBRARIES, LIBRARIES
from evorl.runs.spec import RunSpec
from evorl.types import PyTreeNode

# Settings that the sections of ``AGENT_PARTS`` do not have, because they apply to the whole run.
_OF_THE_RUN = ("total_timesteps", "log_interval", "eval_interval", "checkpoint_interval", "eval_episodes")
# Config folder of each group inside ``inner`` and ``learner``.
_FOLDERS = dict.fromkeys(AGENT_PARTS, "agent") | {f"{part}.evolution": "evolution" for part in AGENT_PARTS}
# Base classes of archives and evolutionary optimizers, by name of the setting that chooses a class.
_BASES: dict[str, type[PyTreeNode]] = {"archive": Archive, "optimizer": EvoOptimizer}

# By config path: kind-specific settings of the file that Hydra read last; ``_settings_of_kind`` uses them afterwards.
_in_file: dict[str, dict[str, Any]] = {}
compose_lock = threading.RLock()  # Hydra keeps global state, shared by all threads


def compose_config(overrides: Sequence[str] = ()) -> DictConfig:
    """Compose the config of a run from overrides, as ``evorl train`` does; invalid overrides raise Hydra's errors."""
    with initialize_configs():
        return compose("config", overrides=list(overrides))


@contextmanager
def initialize_configs() -> Iterator[None]:
    """Context manager in which ``hydra.compose`` reads and completes the config tree, in one thread at a time."""
    with compose_lock, evorl_hydra(), initialize_config_dir(version_base="1.3", config_dir=str(config_folder())):
        yield


@contextmanager
def evorl_hydra() -> Iterator[None]:
    """Context manager that adds class defaults to the files that Hydra reads; restores a user's own Hydra app."""
    _, sources = Plugins.instance(), SourcesRegistry.instance().types  # Plugins registers Hydra's own sources
    before = GlobalHydra.instance().hydra, VersionBase.instance().version_base, sources["file"]
    GlobalHydra.instance().hydra, sources["file"] = None, FileConfigSource
    try:
        yield
    finally:
        GlobalHydra.instance().hydra, VersionBase.instance().version_base, sources["file"] = before


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra config source that completes files with class defaults, and provides the groups of the short forms.

    The class has the name of Hydra's own source. Hydra's launchers register that source again in their processes, but
    keep an existing source of the same name.
    """

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self._inclusions = Inclusions()
        if provider != "main":  # a folder of the user
            refuse_hidden_files(Path(self.path))

    def load_config(self, config_path: str) -> ConfigResult:
        """Load a config file, or create the config of a short form or of a library's environment."""
        group, _, name = config_path.partition("/")
        if _names_a_setting(config_path):
            config = OmegaConf.create(_settings_of_kind(group, name))
            return ConfigResult(self.provider, self.full_path(), config, {"package": None})
        if self._names_an_env(config_path):
            library, _, name = name.partition("/")
            options = [f"/env/_{library}"] if super().is_config(f"env/_{library}") else []
            config = {"defaults": [*options, "_self_"], "env": {"library": library, "name": name}}
            return ConfigResult(self.provider, self.full_path(), OmegaConf.create(config), {"package": "_global_"})
        result = self._read(self._file_of(config_path))
        part = group.removesuffix(".evolution")
        package = f"{part}." if part in AGENT_PARTS else ""
        if group in AGENT_PARTS:
            result.header["package"] = None
        if isinstance(result.config, DictConfig) and ("workflow" in result.config or group.endswith("evolution")):
            result.config = OmegaConf.create(_completed(plain(result.config, resolve=False), package))
        if group == "env":
            _settle_factory(result)
        if config_path == "config":
            result.config = OmegaConf.create({**RunSpec().as_config(), **plain(result.config, resolve=False)})
        _open_mappings(result.config)
        return result

    def _read(self, config_path: str) -> ConfigResult:
        """Read a file as Hydra does; raise ``ValueError`` unless it is a readable mapping with valid ``defaults``."""
        file = Path(self.path) / self._normalize_file_name(config_path)
        text = read_text_file(file, "a config")
        settings = read_yaml(text, str(file))
        if not isinstance(settings, dict | None):
            raise ValueError(f"{file} must be a mapping from settings to values, got {short_repr(settings)}.")
        self._inclusions.add(config_path, (settings or {}).get("defaults"), str(file))
        header = self._get_header_dict(text[:512])
        return ConfigResult(self.provider, f"{self.scheme()}://{self.path}", OmegaConf.create(settings or {}), header)

    def is_group(self, config_path: str) -> bool:
        """Return True if the path is a folder, or a short form without its value."""
        return super().is_group(self._file_of(config_path)) or NAMED.fullmatch(config_path) is not None

    def is_config(self, config_path: str) -> bool:
        """Return True if the path is a file, a short form with a value, or an environment of a library."""
        is_file = super().is_config(self._file_of(config_path))
        return is_file or _names_a_setting(config_path) or self._names_an_env(config_path)

    def _names_an_env(self, config_path: str) -> bool:
        """Return True for ``env/<library>/<name>``, with any name, if the library has no folder of config files."""
        group, library, name = (*config_path.split("/", 2), "", "")[:3]
        if group != "env" or not name or super().is_config(config_path) or super().is_group(f"env/{library}"):
            return False
        return library in LIBRARIES | HOST_LIBRARIES

    def _file_of(self, config_path: str) -> str:
        group, _, name = config_path.partition("/")
        if group == "experiment" and name:
            return f"experiment/{settings_file(name, Path(self.path), _config_folders())}"
        return f"{_FOLDERS[group]}/{name}" if group in _FOLDERS else config_path

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """List the options of a group; ``inner`` and ``learner`` have the options of ``agent``."""
        config_path = self._file_of(config_path)
        return super().list(config_path, results_filter) if super().is_group(config_path) else []


def _config_folders() -> list[Path]:
    """Return all config trees of the current composition."""
    path = GlobalHydra.instance().config_loader().get_search_path().get_path()
    return [Path(element.path.removeprefix("file://")) for element in path if str(element.path).startswith("file://")]


def _names_a_setting(config_path: str) -> bool:
    group, _, name = config_path.partition("/")
    return bool(name) and NAMED.fullmatch(group) is not None


def _completed(settings: dict[str, Any], package: str) -> dict[str, Any]:
    """Add class defaults to a file's settings, and its archive, optimizer and short forms to its defaults list."""
    defaults = [_entry_below(package, entry) for entry in settings.pop("defaults", [])]
    if "workflow" in settings:
        complete = complete_config(workflow_class(settings["workflow"]), settings)
        left_out = set(_OF_THE_RUN) - set(settings) if package else set()
        complete = {name: value for name, value in complete.items() if name not in left_out}
    else:
        complete = settings | {"optimizer": completed_node(EvoOptimizer, settings["optimizer"], None, "optimizer")}
    for setting, base in _BASES.items():
        _in_file.pop(f"{package}{setting}", None)
        kind = complete.get(setting, {}).get("name")
        if kind is None or not _is_kind(kind, base):
            continue
        # Kind-specific settings are stored separately, so that choosing another kind removes them.
        shared = _shared_settings(base)
        _in_file[f"{package}{setting}"] = {n: value for n, value in complete[setting].items() if n not in shared}
        complete[setting] = {n: value for n, value in complete[setting].items() if n in shared}
        defaults = [{f"/{package}{setting}@_global_.{package}{setting}": kind}, *defaults]
    named = [name for name, value in complete.items() if NAMED.fullmatch(name) and "name" in value]
    short = [{f"/{package}{name}@_global_.{package}{name}": None} for name in named]
    self_last = [] if "_self_" in defaults else ["_self_"]
    return {"defaults": [*defaults, *self_last, *short], **complete}


def _entry_below(package: str, entry: Any) -> Any:
    """Return an entry of a defaults list; an entry for an evolutionary optimizer is moved into ``package``."""
    if not package or not isinstance(entry, Mapping) or "/evolution" not in entry:
        return entry
    return {f"/{package}evolution@_global_.{package[:-1]}": entry["/evolution"]}


def _settle_factory(result: ConfigResult) -> None:
    """In an environment's file with a ``factory``, set ``library`` and ``name`` to null unless the file sets them."""
    is_global = result.header.get("package") == "_global_"
    env = result.config.get("env") if isinstance(result.config, DictConfig) and is_global else result.config
    if isinstance(env, DictConfig) and "factory" in env:
        for name in ("library", "name"):
            if name not in env:
                env[name] = None


def _open_mappings(node: Any, name: Any = None) -> None:
    """Allow new entries in ``optimizer.options``, and in schedules, such as ``steps`` instead of ``share``."""
    if isinstance(node, DictConfig):
        for key, value in node.items_ex(resolve=False):
            _open_mappings(value, key)
        if name == "options" or ("start" in node and set(node) <= OF_SCHEDULES):
            OmegaConf.set_struct(node, False)


def _settings_of_kind(group: str, name: str) -> dict[str, Any]:
    """Return the mapping that ``group=name`` sets: the name, and the settings specific to this archive or optimizer."""
    setting = group.rpartition(".")[2]
    base, in_file = _BASES.get(setting), _in_file.get(group)
    if base is None or in_file is None:
        return {"name": name}
    cls, _ = described_node(base, name, group)  # raises for an unknown kind, whose settings would be unknown keys
    if in_file.get("name") != name:  # for another kind, only the file's values of settings without a default apply
        needed = {field.name for field in dataclasses.fields(cls) if default_of(field) is dataclasses.MISSING}
        in_file = {field: value for field, value in in_file.items() if field in needed}
    shared, complete = _shared_settings(base), completed_node(base, {**in_file, "name": name}, None, setting)
    return {field: value for field, value in complete.items() if field not in shared}


def _is_kind(name: str, base: type[PyTreeNode]) -> bool:
    """Return True if ``name`` is a kind of ``base``: always for archives, otherwise for evolutionary optimizers.

    A setting ``optimizer`` may also name a gradient optimizer. A user-defined class is imported to decide; if it does
    not exist, ``ValueError`` is raised.
    """
    if base is not EvoOptimizer:
        return True
    if is_custom_name(name):
        cls = load_named(name, "optimizer")
        return isinstance(cls, type) and issubclass(cls, base)
    return name in OPTIMIZERS or name.startswith("evosax/")


def _shared_settings(base: type[PyTreeNode]) -> set[str]:
    """Return the names of settings kept when another kind is chosen; empty for optimizers, where good values differ."""
    return {field.name for field in dataclasses.fields(base)} if base is Archive else set()
