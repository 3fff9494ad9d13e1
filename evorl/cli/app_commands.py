"""``evorl new``, ``evorl generate`` and ``evorl config``: create the folder of an app, or rewrite its parts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evorl.apps import app_files
from evorl.apps.app_config import APP_FILE, AppConfig, read_app
from evorl.apps.app_text import in_one_line, with_entry, with_values
from evorl.apps.backups import replace_text, replaced, set_aside
from evorl.apps.kinds import KINDS
from evorl.cli.app_agents import (
    AgentFacts,
    agent_facts,
    check_training,
    experiments,
    served_agents,
    settings_of_experiment,
)
from evorl.cli.app_words import without_flags
from evorl.cli.command_options import read_options
from evorl.cli.config_tree import config_folder
from evorl.cli.options import CONFIG, GENERATE, NEW
from evorl.config.command_lines import shell_word
from evorl.config.names import no_such
from evorl.config.yaml_text import read_text_file
from evorl.runs.files import write_atomically

_ALGORITHM = {"-a": "algorithm", "--algorithm": "algorithm"}
_FLAGS = {**_ALGORITHM, "-e": "env", "--environment": "env", "-c": "file", "--config": "file"}


def new_from_arguments(arguments: Sequence[str]) -> Path:
    """Create the folder of an app, print its files, and return the folder; after an error, no files remain."""
    named = without_flags(arguments, {flag: name for flag, name in _FLAGS.items() if name != "file"})
    settings, names = read_options(named, NEW, "evorl new", unnamed="folder")
    if len(names) != 1:
        raise ValueError(f"expected one folder for the app, got {' '.join(names) or 'none'}: use evorl new my-app.")
    folder = Path(names[0])
    kind_name, _, environment = settings["env"].partition("/")
    _check_kind(kind_name)
    if environment and kind_name != "gymnasium":
        raise ValueError(
            f"env={settings['env']}: {kind_name} has a single environment. Did you mean 'gymnasium/{environment}'?"
        )
    agent = settings["algorithm"] or KINDS[kind_name].agent
    facts = agent_facts(agent)
    training = facts.default_training(kind_name)
    written = app_files.make_app(folder, kind_name, agent, training, facts.in_boxes)
    try:
        if environment:
            _fill_spaces(folder / APP_FILE, kind_name, environment)
        _check(read_app(folder / APP_FILE), facts)
    except ValueError:
        shutil.rmtree(folder)
        raise
    for path in written:
        print(f"  {path}")
    print(f"{agent} in {settings['env']}. To train: cd {shell_word(folder)} && evorl run all")
    return folder


def generate_from_arguments(arguments: Sequence[str]) -> list[Path]:
    """Rewrite the parts of an app that the options name; return numbered backups of the previous files.

    If the new app is invalid, ``ValueError`` is raised after the files were written.
    """
    named = without_flags(arguments, _FLAGS)
    settings, _ = read_options(named, GENERATE, "evorl generate")
    if not (settings["algorithm"] or settings["env"] or settings["docker"]):
        raise ValueError(f"nothing to generate: use evorl generate -a ppo, -e {next(iter(KINDS))}, or docker=true.")
    file = Path(settings["file"])
    app = read_app(file)
    text = read_text_file(file)
    backups: list[Path | None] = []
    facts = agent_facts(settings["algorithm"]) if settings["algorithm"] else None
    kind_name = _check_kind(settings["env"]) if settings["env"] else _kind_of(app)
    if settings["env"]:
        kind = KINDS[settings["env"]]
        text = with_entry(text, "environment", app_files.environment_entry(kind, _in_boxes(facts, app)))
        with replaced(app.folder / "environment", backups):
            app_files.write_environment(app.folder, kind)
    if facts is not None:
        folder = app.folder / app_files.APP_ALGORITHMS
        with replaced(folder, backups):
            name_in_app = app_files.write_algorithm(app.folder, facts.source, facts.file)
        entry = f"agent: {name_in_app} # a file of {app_files.APP_ALGORITHMS}/agent, which names the workflow class"
        text = with_entry(text, "agent", entry)
        entry = f"algorithm:\n  path: {app_files.APP_ALGORITHMS} # folder of the app's algorithms"
        text = with_entry(text, "algorithm", entry)
        if app.agent not in (settings["algorithm"], name_in_app):
            text = with_entry(text, "training", app_files.training_entry(facts.default_training(kind_name)))
        print(f"{name_in_app} is your copy: {facts.source.name} and its settings, in {folder}.")
    if settings["docker"]:
        for name in ("Dockerfile", "compose.yaml", ".dockerignore"):
            backups.append(set_aside(app.folder / name))
        packages = KINDS[kind_name].packages if kind_name else ()
        app_files.write_containers(app.folder, config_folder(), app.parameters is not None, packages)
    backups.append(replace_text(file, text))
    return _report(backups, read_app(file), facts)


def config_from_arguments(arguments: Sequence[str]) -> list[str] | list[Path]:
    """Write the settings of an algorithm or simulator into ``app.yaml``; if neither is chosen, print lists of both.

    Returns:
        The names of the listed algorithms and experiments; or the backup of ``app.yaml`` in a list, empty if unchanged.
    """
    named = without_flags(arguments, {**_FLAGS, "-l": "list=true", "--list": "list=true"})
    settings, _ = read_options(named, CONFIG, "evorl config")
    if settings["list"] or not (settings["algorithm"] or settings["env"]):
        return _list()
    file = Path(settings["file"])
    app = read_app(file)
    text = read_text_file(file)
    facts = None
    kind_name = _kind_of(app)
    if settings["env"]:
        kind_name = _check_kind(settings["env"])
    if settings["algorithm"]:
        agent, tuned = settings["algorithm"], None
        if agent not in served_agents():
            agent, tuned = settings_of_experiment(agent)
        facts = agent_facts(agent)
        default = facts.default_training(kind_name) if tuned is None else tuned
        text = with_entry(text, "agent", f"agent: {agent} # the algorithm; evorl config lists all algorithms")
        text = with_entry(text, "training", app_files.training_entry(default))
    if settings["env"]:
        entry = app_files.environment_entry(KINDS[settings["env"]], _in_boxes(facts, app))
        text = with_entry(text, "environment", entry)
        if not (app.folder / "environment" / f"{KINDS[settings['env']].script}.py").exists():
            print(f"The script of the simulator is missing. To create it: evorl generate -e {settings['env']}")
    _check_text(file, text, facts)
    return _report([replace_text(file, text)], read_app(file), facts)


def _list() -> list[str]:
    descriptions = {}
    for group, names in (("agent", served_agents()), ("experiment", experiments())):
        descriptions |= {name: _description(config_folder() / group / f"{name}.yaml") for name in names}
    width = max(map(len, descriptions))
    for name, description in descriptions.items():
        print(f"  {name:{width}s}  {description}".rstrip())
    kinds = "".join(f"  {name:{width}s}  {kind.description}\n" for name, kind in KINDS.items())
    print(f"\nSimulators:\n{kinds}")
    print("To write settings into app.yaml: evorl config -a ppo -e bandit")
    return list(descriptions)


def _description(file: Path) -> str:
    """Return the first comment line of a config file, not counting Hydra directives; empty without comments."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    comments = (line.removeprefix("#").strip() for line in lines if line.startswith("#") and "@package" not in line)
    return next(comments, "")


def _check_kind(name: str) -> str:
    if name not in KINDS:
        raise ValueError(no_such("simulator", name, KINDS))
    return name


def _in_boxes(facts: AgentFacts | None, app: AppConfig) -> bool:
    """Return True if the new algorithm, by default the one in the app or its original, supports only Box actions."""
    agent = app.agent.removeprefix(f"{app_files.AGENT_GROUP}/")
    if facts is None and agent in served_agents():
        facts = agent_facts(agent)
    return facts is not None and facts.in_boxes


def _kind_of(app: AppConfig) -> str | None:
    """Return the kind of an app's simulator, recognized by its script; ``None`` if unknown."""
    started = " ".join(app.environment_command("python"))
    return next((name for name, kind in KINDS.items() if f"{kind.script}.py" in started), None)


def _fill_spaces(file: Path, kind_name: str, environment: str) -> None:
    """Write an environment's name and spaces into ``app.yaml``; if its script fails, only the name, and print why."""
    text = file.read_text(encoding="utf-8")
    entry = app_files.environment_entry(KINDS[kind_name], False, {"name": in_one_line(environment)})
    file.write_text(with_entry(text, "environment", entry), encoding="utf-8")
    script = Path("environment") / f"{KINDS[kind_name].script}.py"
    command = [sys.executable, str(script), "--spaces"]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it printed no error"])[-1]
        print(f"The spaces of {environment} are unknown ({last}): set them in {file}.")
        return
    spaces = {name: in_one_line(space) for name, space in json.loads(done.stdout.splitlines()[-1]).items()}
    file.write_text(with_entry(text, "environment", with_values(entry, spaces)), encoding="utf-8")


def _check_text(file: Path, text: str, facts: AgentFacts | None) -> None:
    """Check a new text of ``app.yaml``; raise ``ValueError`` if it is invalid, ``RunFolderError`` for a linked file."""
    beside = file.with_name(f"{file.name}.checked")
    write_atomically(beside, text)
    try:
        _check(read_app(beside), facts)
    finally:
        beside.unlink()


def _check(app: AppConfig, facts: AgentFacts | None) -> None:
    if facts is not None and facts.in_boxes and "n" in (app.environment.get("action_space") or {}):
        raise ValueError(
            f"{app.agent} supports only Box actions, but environment.action_space is "
            f"{app.environment['action_space']}: choose another algorithm, or an environment with Box actions."
        )
    check_training(app)


def _report(backups: Sequence[Path | None], app: AppConfig, facts: AgentFacts | None) -> list[Path]:
    existing = [path for path in backups if path is not None]
    for path in existing:
        print(f"The previous file is kept as {path}.")
    _check(app, facts)
    return existing
