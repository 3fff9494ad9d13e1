"""Python functions of the commands, with the arguments of the command line; the package ``evorl`` exports them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import open_dict

from evorl.cli.arguments import NAMED, as_hydra_overrides, check_overrides, names_a_run, overrides_first
from evorl.cli.command_table import COMMANDS
from evorl.cli.commands import run as command
from evorl.cli.compare import compare as compare_agents
from evorl.cli.composition import compose_config, initialize_configs
from evorl.cli.config_tree import config_folder
from evorl.cli.errors import config_errors
from evorl.cli.evaluation import Evaluation, evaluate_run
from evorl.cli.option_types import (
    CheckEnvOptions,
    ExportOptions,
    PackOptions,
    PlayOptions,
    RenderOptions,
    ReportOptions,
)
from evorl.cli.overrides import stored_run_settings, sweep_to_resume
from evorl.cli.run_names import composed_by
from evorl.cli.train import train_sweep
from evorl.cli.training import train_run
from evorl.config.command_lines import as_override
from evorl.config.names import name_of
from evorl.config.values import plain, positive
from evorl.config.yaml_text import inline_yaml
from evorl.envs.env_trial import Trial
from evorl.envs.factory import create_env
from evorl.envs.vector import VectorEnv
from evorl.runs.spec import RunSpec
from evorl.training.start import Trained


def train(*overrides: str, **settings: object) -> Path:
    """Train as ``evorl train`` does and return the run folder; a notebook shows the growing learning curve.

    ``evorl.train("agent=sac", "env=pendulum", num_seeds=3)`` is ``evorl train agent=sac env=pendulum num_seeds=3``.
    Sweeps, searches, ``init_from`` and ``resume`` use the same arguments. Ctrl-C or a stop button saves the run.

    Args:
        overrides: overrides as on the command line, such as ``"agent.clip_epsilon=0.1"``.
        settings: settings as Python values, such as ``sweep={"discount": [0.9, 0.99]}``. Your own class or function
            is passed by its name: ``env=MyEnv`` is ``env=user env.factory=module:MyEnv``.

    Returns:
        The folder of the run, sweep or search.

    Raises:
        ValueError: a setting is unknown or invalid.
        RunFolderError: the run to resume does not exist, is corrupted or not trusted, or is being trained.
        TrainingDiverged: the run diverged; a sweep or search trains its other runs instead of raising an error.
        RunsFailed: ``resume`` names a sweep of ``evorl train -m`` in which a run failed; raised after the other runs.
    """
    arguments = overrides_first([*overrides, *_training_overrides(settings)])
    for argument in arguments:
        if argument.startswith("-") or not argument.partition("=")[0]:
            raise ValueError(
                f"{argument!r} is not a setting: pass settings such as evorl.train('agent=sac', 'env=pendulum'). Flags "
                "work only on the command line; instead of -m use a loop, or sweep={...}."
            )
    with config_errors():
        trained = _trained(arguments)
    if trained.folder is None:
        raise RuntimeError("training did not report a folder for its results.")
    return trained.folder


def evaluate(
    run: str | Path = "latest", *, runs_folder: str | Path = "runs", trust: bool = False, **settings: object
) -> Evaluation:
    """Evaluate the best checkpoint of a run and return the results: ``evorl.evaluate(folder, seed=1).mean_return``.

    Args:
        run: a run folder, its name below ``runs_folder``, ``latest``, or the file or address of a packed policy.
        runs_folder: folder in which ``latest`` and names of runs are looked up.
        trust: True to allow code outside evorl that the run's config names; only for runs that you trust.
        settings: changes to the run's settings for this evaluation, such as ``eval_episodes=100``.

    Raises:
        ValueError: a setting is unknown, invalid, or has no effect on an evaluation; or no checkpoint can be loaded.
        RunFolderError: the run does not exist, is corrupted, or is not trusted.
    """
    stored = {"run": run, "runs_folder": runs_folder, "trust": trust}
    arguments = overrides_first(as_overrides(stored | settings))
    with config_errors():
        return evaluate_run(RunSpec(stored=stored_run_settings(arguments)), arguments)


def render(run: str | Path = "latest", **options: Unpack[RenderOptions]) -> Path:
    """Render the best policy of a run: ``evorl.render(folder, episodes=2)`` is ``evorl render run=... episodes=2``.

    Returns:
        Path of the image, video or page.

    Raises:
        ValueError: an option is unknown or invalid, or no checkpoint can be loaded.
        OSError: the run does not exist or is corrupted (``RunFolderError``), or cannot be drawn (``HostEnvError``).
    """
    return command(_command_line("render", {"run": run, **options}))


def play(run: str | Path = "latest", **options: Unpack[PlayOptions]) -> Path | None:
    """Play a Gymnasium environment with the policy of a run: ``evorl.play(folder, env="gymnasium/CartPole-v1")``.

    Returns:
        Path of the animation; ``None`` with ``screen=True``, which shows a window instead.

    Raises:
        ValueError: an option is unknown or invalid, or the policy does not fit the environment.
        RunFolderError: the run does not exist, or is corrupted.
        HostEnvError: the environment failed, or cannot be rendered on this machine.
    """
    return command(_command_line("play", {"run": run, **options}))


def report(*runs: str | Path, **options: Unpack[ReportOptions]) -> Path:
    """Write an HTML report on runs: ``evorl.report("runs", by="agent")`` is ``evorl report runs by=agent``.

    Returns:
        Path of the page.

    Raises:
        ValueError: no run is named, an option is unknown or invalid, or no run has recorded the metric.
        RunFolderError: a run does not exist, no run matches the options, or the page cannot be written.
    """
    return command(_command_line("report", options, *map(str, runs)))


def compare(*agents: str, seeds: int = 10, **settings: object) -> Path | None:
    """Train agents on the same seeds and report which is better: ``evorl.compare("ppo", "sac", env="pendulum")``.

    Args:
        agents: names of at least two agents, and settings of all runs as text, such as ``"optimizer.name=sgd"``.
        seeds: number of seeds of each agent, at least 2; ignored with ``resume``.
        settings: settings of all runs as Python values; or only ``resume=folder``, to continue a comparison.

    Returns:
        Path of the report; ``None`` if the training runs were stopped.

    Raises:
        ValueError: an agent or a setting is unknown or invalid. An invalid ``resume`` raises ``RunFolderError``.
        RunsFailed: a run failed, now or in an earlier call; raised after all other runs have ended, or after a stop.
    """
    number = {} if "resume" in settings else {"seeds": seeds}
    with config_errors(), _kept_arguments():
        return compare_agents([*agents, *_training_overrides(number | settings)], train_sweep)


def export_policy(
    run: str | Path = "latest", format: str | Sequence[str] | None = None, **options: Unpack[ExportOptions]
) -> list[Path]:
    """Export the policy of a run to files that run without evorl: ``evorl.export_policy(folder, "numpy")``.

    Args:
        run: a run folder, its name below ``runs_folder``, ``latest``, or the file or address of a packed policy.
        format: required: ``"onnx"``, ``"jax"``, ``"numpy"`` or ``"html"``; or several.
        options: options of ``evorl export``.

    Returns:
        Paths of the files. Their outputs were compared with the policy, except for ``html`` without Node.js.

    Raises:
        ValueError: an option is unknown or invalid, or a file does not reproduce the outputs of the policy.
        RunFolderError: the run does not exist, or is corrupted.
    """
    formats = format if isinstance(format, str | None) else ",".join(format)
    return [written.path for written in command(_command_line("export", {"run": run, "format": formats, **options}))]


def check_env(
    env: str | Callable[..., object],
    *,
    arguments: Mapping[str, object] | None = None,
    **options: Unpack[CheckEnvOptions],
) -> Trial:
    """Check a custom environment and step it with random actions: ``evorl.check_env(MyEnv, steps=500)``.

    ``evorl.envs.check_env`` only checks the contract of an existing ``Env``; it takes no steps.

    Args:
        env: function or class that creates the environment, or its name, ``"package.module:function"``.
        arguments: arguments of the function.
        options: options of ``evorl check-env``.

    Returns:
        Results of the random steps, such as the returns of the ended episodes.

    Raises:
        ValueError: the environment violates its contract or its steps have faults, one line per fault; no agent can
            act in its action space; or an argument is invalid.
    """
    return command(_command_line("check-env", {"arguments": arguments or {}, **options}, name_of(env)))


def make(env: str | Callable[..., object], num_envs: int = 1, **options: object) -> VectorEnv:
    """Create the environments that ``env=...`` names on the command line: ``evorl.make("pendulum", num_envs=8)``.

    ``state = envs.reset(jax.random.key(0))`` starts them, ``envs.step(state, actions)`` returns the next state. By
    default, ended episodes are replaced by new ones; ``autoreset_mode="disabled"`` leaves them unchanged.

    Args:
        env: name of a config, ``"cartpole"``, or of a library's environment, ``"gymnasium/Pendulum-v1"``, see
            ``evorl.list_envs``; or a function or class that creates a custom environment, or its name,
            ``"package.module:function"``.
        num_envs: number of environments.
        options: settings of ``env``, such as ``max_episode_steps=100``, and arguments of the environment itself.

    Raises:
        ValueError: the environment or an option does not exist; the message suggests the closest valid name.
        ImportError: the library of the environment is not installed; the message names the extra.
    """
    num_envs = positive(num_envs, "num_envs")
    if not isinstance(env, str) or (":" in env and "/" not in env):
        return create_env({"factory": name_of(env), **options}, parallel=num_envs)
    with config_errors():
        config = compose_config(overrides_first(["~experiment", *as_overrides({"env": env})]))
    return create_env({**plain(config.env), **options}, parallel=num_envs)


def pack(run: str | Path = "latest", **options: Unpack[PackOptions]) -> Path:
    """Pack the policy of a run into one file: ``evorl.pack(folder, to="policy.zip")``, as ``evorl pack`` does.

    Args:
        run: a run folder, its name below ``runs_folder``, ``latest``, or the file or address of a packed policy.
        options: options of ``evorl pack``.

    Returns:
        Path of the file.

    Raises:
        ValueError: an option is unknown or invalid, or the checkpoint does not exist.
        RunFolderError: the run does not exist, is corrupted or not trusted, or the file cannot be written.
    """
    return command(_command_line("pack", {"run": run, **options}))


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as overrides: ``["num_seeds=2"]`` for ``{"num_seeds": 2}``.

    A mapping for an archive or optimizer first chooses the kind, which determines the other entries.
    """
    overrides = []
    for key, value in settings.items():
        kind = value.get("name") if isinstance(value, Mapping) and NAMED.fullmatch(key) else None
        if isinstance(value, Mapping) and kind and (isinstance(kind, str) or callable(kind)):
            overrides.append(f"{key}={as_override(kind)}")
            overrides += [f"{key}.{name}={as_override(x)}" for name, x in value.items() if name != "name"]
        else:
            overrides.append(f"{key}={as_override(value)}")
    return overrides


def _training_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Return training settings as overrides; a class or function as ``env`` becomes ``env.factory``, by its name."""
    if callable(settings.get("env")):
        settings = {"env": "user", "env.factory": settings["env"]} | {k: v for k, v in settings.items() if k != "env"}
    return as_overrides(settings)


def _command_line(name: str, options: Mapping[str, Any], *unnamed: str) -> list[str]:
    """Return the arguments of a command that composes no Hydra config: text is literal, other values are YAML."""
    known, arguments = COMMANDS[name].options, [name, *unnamed]
    for key, value in options.items():
        text = value
        if isinstance(value, bool) and key in known and known[key].is_text:
            if not known[key].empty:  # csv=True is --csv
                raise ValueError(f"{key} must be text, got {value}: {known[key].meaning}.")
            text = "" if value else "null"
        elif not isinstance(value, str | Path):
            (override,) = OverridesParser.create().parse_overrides(as_overrides({key: value}))
            text = inline_yaml(override.value())
        arguments.append(f"{key}={text}")
    return arguments


@contextmanager
def _kept_arguments() -> Iterator[None]:
    """Context manager that restores ``sys.argv`` and ``HYDRA_FULL_ERROR``, which a sweep changes for Hydra."""
    full_error, before = os.environ.get("HYDRA_FULL_ERROR"), sys.argv[:]
    os.environ["HYDRA_FULL_ERROR"] = full_error or "1"  # otherwise Hydra prints errors and exits
    try:
        yield
    finally:
        sys.argv[:] = before
        if full_error is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)


def _trained(arguments: Sequence[str]) -> Trained:
    if names_a_run(arguments, "resume"):
        if folder := sweep_to_resume(arguments)[0]:
            with _kept_arguments():
                train_sweep(arguments)
            return Trained(None, False, folder.resolve())
        return train_run(RunSpec(stored=stored_run_settings(arguments)), arguments)
    with _composed(arguments) as spec:
        check_overrides(arguments, [config_folder()])
        return train_run(spec)


@contextmanager
def _composed(arguments: Sequence[str]) -> Iterator[RunSpec]:
    """Context manager that yields the settings composed from overrides, and provides ``hydra_settings`` meanwhile."""
    with initialize_configs():
        config = compose("config", overrides=as_hydra_overrides(arguments), return_hydra_config=True)
        before = HydraConfig.instance().cfg  # config of the calling program, if it uses Hydra
        HydraConfig.instance().set_config(config)
        try:
            hydra = HydraConfig.get()
            with open_dict(config):
                del config["hydra"]
            spec = RunSpec.from_config(config)  # resolves ${hydra:...}
        finally:
            HydraConfig.instance().cfg = before
    with composed_by(hydra):
        yield spec
