"""From a config to the fields of a workflow: nested mappings become nodes, unknown names are refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from evorl.agents.flat_images import check_image_networks
from evorl.config.defaults import completed
from evorl.config.gate import distrusting, grant
from evorl.config.names import SHIPPED_WORKFLOWS, load, load_class
from evorl.config.nodes import default_of, fields_from_config, plain
from evorl.config.values import check_names, checked_mapping, checked_value, field_types, positive
from evorl.envs import AutoresetMode, create_env
from evorl.evaluators.episodes import longest_episode
from evorl.execution.plan import plan_execution
from evorl.ops.schedules import Schedule

# ``Workflow`` and its classes: the contract imports this file to build what a config describes.
Workflow: TypeAlias = Any
WorkflowClass: TypeAlias = Any

# Keys of a run's config that concern the run, not the workflow.
RUN_KEYS = frozenset(
    "workflow title seed sweep search serve parameters resume run init_from runs_folder trust recorders".split()
    + "compilation_cache deterministic eval_at_start render_interval".split()
    + "checkpoints_kept best_checkpoints_kept best_over checkpoint_seconds".split()
)
# Keys from which fields are made, rather than being fields.
BUILD_KEYS = frozenset(
    {"env", "agent", "num_envs", "autoreset_mode", "devices", "num_seeds", "env_chunk", "actors", "evaluation"}
)
# Options of an environment that change what the agent learns from, not what evaluations report.
TRAINING_OPTIONS = frozenset(
    {"reward_transform", "reward_clip", "reward_scale", "sparse_reward_interval"}
    | {"terminal_on_life_loss", "goal_setter"}
)
_IS_REMOTE = "evorl.envs.remote:is_remote"
_MAKE_KEEPING = "evorl.evaluators.keeping:make_keeping"  # loaded where evaluations keep something
_MAKE_INTRINSIC = "evorl.workflows.intrinsic:make_intrinsic"  # loaded where there is one
OF_SCHEDULES = {"steps", *(field.name for field in dataclasses.fields(Schedule))}
_NO_TRAINING = {
    AutoresetMode.DISABLED: "an environment whose episode has ended stands still, and nothing would be learned from it",
    AutoresetMode.ENVPOOL: "the step after an episode only resets, and would be learned from as if it were a real one",
}


def config_keys(cls: WorkflowClass) -> frozenset[str]:
    """The keys that a config of this workflow may have, besides those of the run."""
    settings = {field.name for field in dataclasses.fields(cls) if field.metadata.get("setting", True)}
    return frozenset((settings | BUILD_KEYS) - set(cls.foreign_keys))


def complete_config(cls: WorkflowClass, config: Mapping[str, Any]) -> dict[str, Any]:
    """A workflow's config in which every setting of its own and of its agent has a value, the class's by default.

    What belongs to the run (devices, seeds) and what a class leaves open (environment, inner workflows) is not added.
    """
    config = plain(config)
    keys = config_keys(cls)
    # A part without a default is another config, such as an inner workflow's, which completes itself.
    whole = {field.name for field in dataclasses.fields(cls) if default_of(field) is dataclasses.MISSING} | BUILD_KEYS
    usual = completed(cls, {name: value for name, value in config.items() if name not in whole})
    complete = {name: value for name, value in usual.items() if name in config or name in keys - whole}
    if "num_envs" in keys:
        complete |= {"num_envs": cls.default_num_envs, "autoreset_mode": AutoresetMode.NORMAL.value}
    if "agent" in keys:
        agent = field_types(cls)["agent"]
        complete["agent"] = agent.complete_config(config.get("agent"))
    others = {name: value for name, value in config.items() if name in whole - {"agent"} or name not in complete}
    named = {"workflow": config["workflow"]} if "workflow" in config else {}
    return {**named, **complete, **others}


def refuse_replay(cls: WorkflowClass, config: Mapping[str, Any]) -> None:
    """Refuse ``replay`` for a workflow without a replay buffer of its own.

    Raises:
        ValueError: the config has ``replay``; the message has the key of the inner workflow that accepts it.
    """
    if "replay" not in config or "replay" in config_keys(cls):
        return
    part = next(
        (name for name in ("learner", "inner") if name in {field.name for field in dataclasses.fields(cls)}), None
    )
    if part is None:
        instead = "leave it out, or choose an off-policy agent such as dqn, td3 or sac"
    else:
        replay = config["replay"] if isinstance(config["replay"], Mapping) else {}
        settings = [f"{part}.replay.{name}={value}" for name, value in replay.items() if value is not None]
        instead = (
            f"the workflow of {part} may have one, set by {' '.join(settings) or f'{part}.replay.hindsight=future'}"
        )
    raise ValueError(
        f"replay={config['replay']} sets up a replay buffer, which {cls.__name__} does not have: {instead}."
    )


def read_workflow_config(cls: WorkflowClass, config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``cls`` that a config describes. See ``Workflow.build_from_config``."""
    seed = config.get("seed", 0)
    config = {key: value for key, value in plain(config).items() if key not in RUN_KEYS}
    refuse_replay(cls, config)
    check_names(config, config_keys(cls) | RUN_KEYS, "config key")
    if "env" not in config:
        raise ValueError("The config names no environment: give env, for example {'library': 'gymnax', 'name': ...}.")
    total = config.get("total_timesteps", getattr(cls, "total_timesteps", None))
    config = {key: value if key == "env" else with_shares(value, total, key) for key, value in config.items()}
    settings = {key: value for key, value in config.items() if key not in BUILD_KEYS}
    fields = fields_from_config(cls, settings, "")
    num_envs, autoreset_mode = cls.training_rows(config, fields)
    actors = None
    if config.get("actors") is not None:
        actors, num_envs = _make_actors(cls, config, num_envs)
    env = make_env(seeded(config["env"], seed), num_envs, autoreset_mode)
    if fields.get("intrinsic") is not None:
        fields["intrinsic"] = load(_MAKE_INTRINSIC)(fields["intrinsic"], env)
    eval_config = seeded(as_paid_by_the_environment(config["env"]), seed + 1)
    eval_episodes = positive(config.get("eval_episodes", 20), "eval_episodes")
    eval_env = make_env(eval_config, eval_rows(eval_episodes, env.num_agents), AutoresetMode.DISABLED)
    execution, env_chunk = plan_execution(
        env,
        devices=config.get("devices", 1),
        num_seeds=positive(config.get("num_seeds", 1), "num_seeds"),
        env_chunk=config.get("env_chunk", "auto"),
        min_bytes=cls.min_bytes_per_device,
        evenly=cls.needs_even_shares,
        small_updates=cls.has_small_updates,
    )
    together = env.num_agents * execution.num_devices
    if execution.num_devices > 1 and eval_env.num_envs % together:
        eval_env = make_env(eval_config, eval_rows(eval_episodes, together), AutoresetMode.DISABLED)
    plays_episodes = fields.get("eval_interval", 1.0) or autoreset_mode is AutoresetMode.DISABLED
    if plays_episodes and not load(_IS_REMOTE)(eval_env):
        longest_episode(eval_env)  # refused now, not at the first evaluation or generation
    keeping = None
    if config.get("evaluation") is not None:
        plays_as_all = cls.evaluation.__module__ == "evorl.workflows.workflow"
        keeping = load(_MAKE_KEEPING)(config["evaluation"], eval_env, eval_episodes, plays_as_all)
    agent = cls.make_agent(checked_mapping(config.get("agent"), "agent"), env)
    check_image_networks(agent, env.obs_space, env.action_space)
    built = {"env": env, "eval_env": eval_env, "agent": agent, "execution": execution, "env_chunk": env_chunk}
    return {**fields, **built, "actors": actors, "keeping": keeping}


def with_shares(config: Any, total_timesteps: Any, where: str) -> Any:
    """What a config says under the path ``where``, with the environment ``steps`` after which schedules end as their
    ``share`` of the training.

    Raises:
        ValueError: they are no positive number, or of how many nobody knows; in words.
    """
    if not isinstance(config, Mapping):
        return config
    result = {name: with_shares(value, total_timesteps, f"{where}.{name}") for name, value in config.items()}
    if "steps" not in result or not set(result) <= OF_SCHEDULES:
        return result
    steps = result.pop("steps")
    if steps is None:
        return result
    if total_timesteps is None:
        raise ValueError(f"{where}.steps are those of a training whose length is not its own: give {where}.share.")
    total, steps = (
        checked_value(value, float, name, "(0, inf)")
        for name, value in {"total_timesteps": total_timesteps, f"{where}.steps": steps}.items()
    )
    return result | {"share": steps / total}


def _make_actors(cls: WorkflowClass, config: Mapping[str, Any], num_envs: int) -> tuple[Any, int]:
    """The actors that a config describes, and how many environments the learner's iteration has.

    Raises:
        ValueError: the environments cannot be shared evenly among them, or a setting cannot be.
    """
    settings = load("evorl.actors.actor_settings:actor_settings")(config["actors"])
    if num_envs % settings.count:
        raise ValueError(
            f"num_envs={num_envs} environments cannot be shared evenly by actors.count={settings.count}: choose a "
            f"multiple of {settings.count}."
        )
    share = num_envs // settings.count
    of_one = {**config, "workflow": f"{cls.__module__}.{cls.__qualname__}", "num_envs": share, "eval_episodes": 1}
    grant(of_one["workflow"])  # the class has passed the gate, perhaps by another name
    for name in ("actors", "num_seeds", "devices", "evaluation"):
        of_one.pop(name, None)
    if "num_minibatches" in config_keys(cls):
        of_one["num_minibatches"] = 1  # how the learner cuts a batch need not suit an actor's share of it
    return load("evorl.actors.actor_loop:Actors")(settings, of_one), share if settings.is_async else num_envs


def workflow_from_config(config: Mapping[str, Any], name: str = "workflow") -> Workflow:
    """The workflow whose class a config names by its path, built from that config.

    Args:
        config: with ``workflow``, such as ``evorl.algorithms.ppo.PPOWorkflow``.
        name: of that setting, for messages.

    Raises:
        ValueError: there is no such class, or the config does not fit together, in words.
    """
    if "workflow" not in config:
        raise ValueError(f"{name} is missing: name the class, for example evorl.algorithms.ppo.PPOWorkflow.")
    with distrusting(config):
        return workflow_class(config["workflow"], name).build_from_config(config)


def workflow_class(path: Any, name: str = "workflow") -> WorkflowClass:
    """Import the class of a dotted path, such as ``evorl.algorithms.ppo.PPOWorkflow``.

    Args:
        path: of the class.
        name: of the setting with this value, for messages.

    Raises:
        ValueError: there is no such class, or it is no workflow.
        ForeignCodeError: the path comes from an untrusted source, and does not name one of evorl's algorithms.
    """
    chosen = load_class(path, name, SHIPPED_WORKFLOWS)
    if not hasattr(chosen, "build_from_config"):
        raise ValueError(f"{name}={path!r} is no workflow: name a class such as evorl.algorithms.ppo.PPOWorkflow.")
    return chosen


def inner_workflow(
    config: Mapping[str, Any], name: str, shared: tuple[str, ...], not_its_own: tuple[str, ...]
) -> Workflow:
    """The workflow that a part of a config describes, of a workflow that holds others.

    Args:
        config: of the whole.
        name: of the part, a mapping with a ``workflow`` key.
        shared: settings of the whole that the part has too.
        not_its_own: further settings that only the whole has.

    Raises:
        ValueError: the part has such a setting, or does not fit together, in words.
    """
    part = checked_mapping(config.get(name), name)
    for setting in (*shared, *not_its_own):
        if setting in part:
            raise ValueError(f"{name}.{setting} is that of the whole run: give {setting} instead.")
    if "total_timesteps" not in {*part, *shared}:
        with_shares({key: value for key, value in part.items() if key != "env"}, None, name)  # which refuses steps
    return workflow_from_config({**part, **{key: config[key] for key in shared if key in config}}, f"{name}.workflow")


def make_env(config: Mapping[str, Any] | str, num_envs: int, autoreset_mode: AutoresetMode) -> Any:
    """The vector environment of a config."""
    return create_env(config, parallel=num_envs, autoreset_mode=autoreset_mode)


def training_mode(mode: str | AutoresetMode) -> AutoresetMode:
    """The autoreset mode of training environments.

    Raises:
        ValueError: there is no such mode, or it is one whose idle steps nothing would leave out of the training.
    """
    if not isinstance(mode, AutoresetMode):
        check_names([str(mode).upper()], AutoresetMode.__members__, "autoreset_mode")
        mode = AutoresetMode[str(mode).upper()]
    if mode in _NO_TRAINING:
        raise ValueError(f"autoreset_mode={mode.value} is not for training: {_NO_TRAINING[mode]}. Use normal or fast.")
    return mode


def seeded(config: Mapping[str, Any] | str, seed: int) -> Mapping[str, Any] | str:
    """An environment's config with the seed of its simulators, where a compiled program cannot tell them theirs."""
    if not isinstance(config, Mapping) or config.get("host") != "compiled":
        return config
    return {"seed": seed, **config}


def as_paid_by_the_environment(config: Mapping[str, Any] | str) -> Mapping[str, Any] | str:
    """An environment's config without what is for training only: evaluations report what it pays by itself."""
    if not isinstance(config, Mapping):
        return config
    left_out = set(TRAINING_OPTIONS)
    if isinstance(config.get("randomization"), Mapping) and config["randomization"].get("in_evaluation") is False:
        left_out.add("randomization")
    return {key: value for key, value in config.items() if key not in left_out}


def eval_rows(num_episodes: int, multiple_of: int = 1, at_most: int = 128) -> int:
    """How many environments an evaluation steps side by side: one for each episode, up to a limit."""
    rounds = math.ceil(num_episodes / at_most)
    return math.ceil(num_episodes / rounds / multiple_of) * multiple_of
