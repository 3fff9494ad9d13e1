"""Builds a workflow's fields from a config: nested mappings become nodes, and unknown names raise errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

from evorl.actors.actor_loop import Actors
from evorl.actors.actor_settings import ActorSettings
from evorl.agents.flat_images import check_image_networks
from evorl.agents.intrinsic_kinds import make_intrinsic
from evorl.config.gate import distrusting, grant
from evorl.config.names import SHIPPED_WORKFLOWS, load_class
from evorl.config.nodes import completed, default_of, fields_from_config, named_section, node_from_config
from evorl.config.values import check_names, checked_mapping, checked_value, field_types, plain, positive
from evorl.envs import AutoresetMode, create_env
from evorl.envs.env import as_autoreset_mode
from evorl.episodes.recording_options import make_recording_options
from evorl.evaluators.episodes import longest_episode
from evorl.execution.plan import plan_execution
from evorl.ops.schedules import Schedule
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import EvaluationRecords, read_evaluation

# Placeholders for ``Workflow`` and its type, to avoid a circular import.
Workflow: TypeAlias = Any
WorkflowClass: TypeAlias = Any

_STRUCTURE = frozenset({"env", "agent", "num_envs", "autoreset_mode"})
# Keys of a run's config that are not settings of the workflow.
RUN_KEYS = (RunSpec.keys() - RunSpec.keys("builds")) | {"workflow", "seed"}
# Keys that are not fields of a workflow, but from which its fields are built.
BUILD_KEYS = _STRUCTURE | (RunSpec.keys("builds") - {"seed"})
# Options of an environment that apply to training only, not to evaluations.
TRAINING_OPTIONS = frozenset(
    {"reward_transform", "reward_clip", "reward_scale", "sparse_reward_interval"}
    | {"terminal_on_life_loss", "goal_setter"}
)
OF_SCHEDULES = {"steps", *(field.name for field in dataclasses.fields(Schedule))}
_NO_TRAINING = {
    AutoresetMode.DISABLED: "an environment whose episode has ended is not reset, so training would get no more data",
    AutoresetMode.ENVPOOL: "the step after an episode only resets, and would count as a transition",
}


def config_keys(cls: WorkflowClass) -> frozenset[str]:
    """Return the config keys that are valid for this workflow, in addition to ``RUN_KEYS``."""
    settings = {field.name for field in dataclasses.fields(cls) if field.metadata.get("setting", True)}
    return frozenset((settings | BUILD_KEYS) - set(cls.foreign_keys))


def complete_config(cls: WorkflowClass, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with a value for every setting of the workflow and its agent; missing settings get defaults.

    Settings of the run (devices, seeds) and sections without a default (environment, inner workflows) are not added.
    """
    config = plain(config)
    keys = config_keys(cls)
    # A section without a default is another config, such as an inner workflow, and is completed separately.
    parts = {field.name for field in dataclasses.fields(cls) if default_of(field) is dataclasses.MISSING} | BUILD_KEYS
    defaults = completed(cls, {name: value for name, value in config.items() if name not in parts})
    complete = {name: value for name, value in defaults.items() if name in config or name in keys - parts}
    if "num_envs" in keys:
        complete |= {"num_envs": cls.default_num_envs, "autoreset_mode": AutoresetMode.NORMAL.value}
    if "agent" in keys:
        agent = field_types(cls)["agent"]
        complete["agent"] = agent.complete_config(config.get("agent"))
    others = {name: value for name, value in config.items() if name in parts - {"agent"} or name not in complete}
    workflow = {"workflow": config["workflow"]} if "workflow" in config else {}
    return {**workflow, **complete, **others}


def check_keys(cls: WorkflowClass, spec: RunSpec) -> None:
    """Raise ``ValueError`` for a key in ``spec.workflow`` that the workflow does not have."""
    valid = config_keys(cls)
    if "replay" in spec.workflow and "replay" not in valid:
        _refuse_replay(cls, spec.workflow["replay"])
    check_names(spec.workflow, valid | RUN_KEYS, "config key")


def _refuse_replay(cls: WorkflowClass, replay: Any) -> None:
    """Raise ``ValueError`` for ``replay``; with an inner workflow, the message names the key to set instead."""
    names = {field.name for field in dataclasses.fields(cls)}
    part = next((name for name in ("learner", "inner") if name in names), None)
    if part is None:
        instead = "remove it, or choose an off-policy algorithm"
    else:
        entries = replay.items() if isinstance(replay, Mapping) else ()
        settings = [f"{part}.replay.{name}={value}" for name, value in entries if value is not None]
        instead = (
            "its inner workflow may have a buffer, which you configure with "
            f"{' '.join(settings) or f'{part}.replay.hindsight=future'}"
        )
    raise ValueError(f"replay={replay} is set, but {cls.__name__} has no replay buffer: {instead}.")


def build_settings(config: Mapping[str, Any]) -> RunSpec:
    """Read the config of a workflow; unlike commands, it defaults to one device and evaluations without records."""
    config, ignored = plain(config), RUN_KEYS - {"workflow", "seed"}
    settings = {key: value for key, value in config.items() if key not in ignored}
    settings["evaluation"] = read_evaluation(config.get("evaluation"), EvaluationRecords())
    return RunSpec.from_config({"devices": 1, **settings})


def workflow_fields(cls: WorkflowClass, spec: RunSpec) -> dict[str, Any]:
    """Return the constructor arguments of ``cls`` for the settings of a run; for errors see ``build_from_config``."""
    settings = dict(spec.workflow)
    build_learner, total = getattr(cls, "build_learner", None), settings.get("total_timesteps", cls.total_timesteps)
    if build_learner is not None:
        settings["learner"] = build_learner(spec, total)
    check_keys(cls, spec)
    if "env" not in settings:
        raise ValueError("The config has no environment: set env, e.g. {'library': 'gymnax', 'name': 'CartPole-v1'}.")
    settings = {key: value if key == "env" else with_shares(value, total, key) for key, value in settings.items()}
    fields = fields_from_config(cls, {k: v for k, v in settings.items() if k not in BUILD_KEYS | RUN_KEYS}, "")
    num_envs, autoreset_mode = cls.training_rows(
        fields, settings.get("num_envs", cls.default_num_envs), settings.get("autoreset_mode", AutoresetMode.NORMAL)
    )
    actors = None
    if spec.actors is not None:
        actors, num_envs = _make_actors(cls, spec, num_envs)
    env = create_env(seeded_env(spec), parallel=num_envs, autoreset_mode=autoreset_mode)
    if fields.get("intrinsic") is not None:
        fields["intrinsic"] = make_intrinsic(fields["intrinsic"], env, on_policy=hasattr(cls, "restarts_episodes"))
    eval_episodes = positive(settings.get("eval_episodes", 20), "eval_episodes")
    make_eval_env = partial(create_env, seeded_env(spec, evaluates=True), autoreset_mode=AutoresetMode.DISABLED)
    eval_env = make_eval_env(parallel=eval_rows(eval_episodes, env.num_agents))
    execution, env_chunk = plan_execution(env, spec.devices, spec.num_seeds, spec.env_chunk, rules=cls.plan_rules)
    multiple = env.num_agents * execution.num_devices
    if execution.num_devices > 1 and eval_env.num_envs % multiple:
        eval_env = make_eval_env(parallel=eval_rows(eval_episodes, multiple))
    plays_episodes = fields.get("eval_interval", 1.0) or autoreset_mode is AutoresetMode.DISABLED
    if plays_episodes and eval_env.max_episode_steps is None and not eval_env.is_remote:
        longest_episode(eval_env)  # raises now instead of at the first evaluation or generation
    keeping = spec.evaluation
    if keeping is not None:
        is_standard = cls.evaluation.__module__ == "evorl.workflows.workflow"
        keeping = make_recording_options(keeping, eval_env, eval_episodes, is_standard)
    if build_learner is None:
        agent = cls.make_agent(checked_mapping(settings.get("agent"), "agent"), env)
    else:
        agent = settings["learner"].agent
    check_image_networks(agent, env.obs_space, env.action_space)
    execution = dataclasses.replace(execution, collector=actors)
    parts = {"env": env, "eval_env": eval_env, "agent": agent, "execution": execution, "env_chunk": env_chunk}
    return {**fields, **parts, "keeping": keeping}


def with_shares(value: Any, total_timesteps: Any, where: str) -> Any:
    """Return a setting with ``share``, a fraction of training, in place of the environment ``steps`` of schedules.

    Args:
        value: any setting; values other than mappings are returned unchanged.
        total_timesteps: environment steps of the whole training run.
        where: dotted path of the setting, for messages.

    Raises:
        ValueError: ``steps`` or ``total_timesteps`` is not a positive number.
    """
    if not isinstance(value, Mapping):
        return value
    result = {name: with_shares(entry, total_timesteps, f"{where}.{name}") for name, entry in value.items()}
    if "steps" not in result or not set(result) <= OF_SCHEDULES:
        return result
    steps = result.pop("steps")
    if steps is None:
        return result
    total, steps = (
        checked_value(value, float, name, "(0, inf)")
        for name, value in {"total_timesteps": total_timesteps, f"{where}.steps": steps}.items()
    )
    return result | {"share": steps / total}


def _make_actors(cls: WorkflowClass, spec: RunSpec, num_envs: int) -> tuple[Any, int]:
    """Build the actors of a run; return the actors and the number of environments per iteration of the learner.

    Raises:
        ValueError: the environments cannot be divided evenly among the actors, or a setting is invalid.
    """
    settings = node_from_config(ActorSettings, spec.actors, "actors")
    if num_envs % settings.count:
        raise ValueError(
            f"num_envs={num_envs} environments cannot be divided evenly among actors.count={settings.count}: choose a "
            f"multiple of {settings.count}."
        )
    envs_per_actor, path = num_envs // settings.count, f"{cls.__module__}.{cls.__qualname__}"
    grant(path)  # config.gate already admitted this class, possibly under another path
    workflow = {**spec.workflow, "workflow": path, "num_envs": envs_per_actor, "eval_episodes": 1}
    if "num_minibatches" in config_keys(cls):
        workflow["num_minibatches"] = 1  # the learner's number may not divide an actor's share of the batch
    of_actor = {"actors": None, "num_seeds": 1, "devices": 1, "evaluation": None, "workflow": workflow}
    return Actors(settings, dataclasses.replace(spec, **of_actor)), envs_per_actor if settings.is_async else num_envs


def workflow_from_config(config: Mapping[str, Any], name: str = "workflow") -> Workflow:
    """Build a workflow from a config that names its class.

    Args:
        config: mapping with the dotted path of a class as ``workflow``, such as ``evorl.algorithms.ppo.PPOWorkflow``.
        name: name of the setting ``workflow``, for messages.

    Raises:
        ValueError: ``workflow`` is missing or is not a workflow class, or the config is invalid.
    """
    if "workflow" not in config:
        raise ValueError(f"{name} is missing: set it to a class, for example evorl.algorithms.ppo.PPOWorkflow.")
    with distrusting(config):
        return workflow_class(config["workflow"], name).build_from_config(config)


def workflow_class(path: Any, name: str = "workflow") -> WorkflowClass:
    """Import a workflow class such as ``evorl.algorithms.ppo.PPOWorkflow``; ``name`` is its setting, for messages.

    Raises:
        ValueError: the class does not exist, or is not a workflow.
        ForeignCodeError: an untrusted source names a class that evorl does not ship and the user does not allow.
    """
    cls = load_class(path, name, SHIPPED_WORKFLOWS)
    if not hasattr(cls, "build_from_config"):
        raise ValueError(f"{name}={path!r} is not a workflow: use a class such as evorl.algorithms.ppo.PPOWorkflow.")
    return cls


def inner_workflow(
    spec: RunSpec, name: str, shared: tuple[str, ...], not_its_own: tuple[str, ...], total_timesteps: Any
) -> Workflow:
    """Build the inner workflow that a section of the settings describes, with the seed of the run.

    Args:
        spec: settings of the outer workflow.
        name: key of the section in ``spec.workflow``, a mapping with a ``workflow`` key.
        shared: settings of the outer workflow that also apply to the inner workflow.
        not_its_own: settings of the outer workflow that do not apply to the inner workflow.
        total_timesteps: environment steps of the inner workflow, for its schedules; replaces the section's own value.

    Raises:
        ValueError: the section contains a setting in ``shared`` or ``not_its_own``, or is invalid; or actors are set.
    """
    part = checked_mapping(spec.workflow.get(name), name)
    for setting in (*shared, *not_its_own):
        if setting in part:
            raise ValueError(f"{name}.{setting} is a setting of the whole run: set {setting} instead.")
    for key, actors in {"actors": spec.actors, f"{name}.actors": part.get("actors")}.items():
        if actors is not None:
            raise ValueError(
                f"{key}={actors} would have no effect, because an algorithm with a section {name} steps all "
                f"environments in its own program: remove {key}."
            )
    outer = {**spec.workflow, "env_chunk": spec.env_chunk, "evaluation": spec.evaluation}
    part = {"seed": spec.seed, **part, **{key: outer[key] for key in shared if key in outer}}
    part["total_timesteps"] = total_timesteps
    with named_section(name, "total_timesteps", *shared):
        return workflow_from_config(part, f"{name}.workflow")


def training_mode(mode: str | AutoresetMode) -> AutoresetMode:
    """Return ``mode`` as an ``AutoresetMode``; raise ``ValueError`` if unknown, with idle steps, or without resets."""
    mode = as_autoreset_mode(mode, (AutoresetMode.NORMAL, AutoresetMode.FAST))
    if mode in _NO_TRAINING:
        raise ValueError(
            f"autoreset_mode={mode.value} is unsuitable for training: {_NO_TRAINING[mode]}. Use normal or fast."
        )
    return mode


def seeded_env(spec: RunSpec, evaluates: bool = False) -> Mapping[str, Any]:
    """Return the settings of the environment for training or evaluation; with ``host=compiled`` they have a seed."""
    env, seed = (evaluation_env(spec), spec.seed + 1) if evaluates else (spec.env, spec.seed)
    return {"seed": seed, **env} if env.get("host") == "compiled" else env


def evaluation_env(spec: RunSpec) -> dict[str, Any]:
    """Return the settings of the environment for evaluations, without training-only options, such as reward scaling."""
    excluded, randomization = set(TRAINING_OPTIONS), spec.env.get("randomization")
    if isinstance(randomization, Mapping) and randomization.get("in_evaluation") is False:
        excluded.add("randomization")
    if "envpool" in (spec.env.get("library"), str(spec.env.get("name")).partition("/")[0]):
        excluded.add("episodic_life")
    return {key: value for key, value in spec.env.items() if key not in excluded}


def eval_rows(num_episodes: int, multiple_of: int = 1, at_most: int = 128) -> int:
    """Return the smallest multiple of ``multiple_of`` that needs as few rounds as ``at_most`` environments would."""
    rounds = math.ceil(num_episodes / at_most)
    return math.ceil(num_episodes / rounds / multiple_of) * multiple_of
