"""``--plan``: what a training will need, and which files it will write, without building anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evorl.execution.preflight import Preflight

FLAG = "--plan"
LEAST_CHECKED = 10**9  # bytes
MOST_SIMULATORS = 20_000
LEAST_TRANSITION = 16  # bytes: an observation and its successor, an action and a reward, of a number each


def print_plan(arguments: Sequence[str]) -> None:
    """Print what the training of this command line would need.

    Raises:
        ValueError: it cannot be, as the training itself would say; or it needs more than its share of the memory.
    """
    from evorl.cli.arguments import check_overrides
    from evorl.cli.composition import compose_config, config_folder
    from evorl.cli.overrides import check_run_settings, names_a_run
    from evorl.cli.stored_run import build_workflow, prepare_for
    from evorl.execution.first_update import refuse_idle_training, weak_spots
    from evorl.execution.preflight import preflight

    overrides = [argument for argument in arguments if argument != FLAG]
    if names_a_run(overrides, "resume"):
        raise ValueError(f"{FLAG} is for a run that begins: leave resume out.")
    config = compose_config(overrides)
    check_overrides(overrides, [config_folder()])
    check_run_settings(config)
    refuse_hopeless_sizes(config)
    prepare_for(config)
    workflow = build_workflow(config)
    refuse_idle_training(workflow)
    plan = preflight(workflow)
    for line in (*plan.lines(), *file_lines(config, plan), *weak_spots(workflow)):
        print(line)
    if not plan.fits:
        from evorl.execution.memory import MEMORY_SHARE

        raise ValueError(
            f"This run would take more than {MEMORY_SHARE:.0%} of the memory: choose smaller numbers, of environments, "
            "steps in a rollout, members or transitions."
        )


def refuse_hopeless_sizes(config: Mapping[str, Any]) -> None:
    """Refuse sizes that fit no memory whatever the environment, before environments are made.

    Raises:
        ValueError: a size is too large; the message has the setting, its value, and the largest one that may fit.
    """
    parts = [(name, config.get(name)) for name in ("inner", "learner")]
    for above, node in [("", config), *((f"{name}.", part) for name, part in parts if isinstance(part, Mapping))]:
        capacity, rollout, num_envs, episodes = (
            _number(node.get(name)) for name in ("replay_capacity", "rollout_length", "num_envs", "eval_episodes")
        )
        _refuse_bytes(f"{above}replay_capacity", capacity, LEAST_TRANSITION, "transitions")
        if rollout * num_envs >= 2**31:
            raise ValueError(
                f"{above}num_envs={num_envs:,} times {above}rollout_length={rollout:,} are {num_envs * rollout:,} "
                f"transitions in an iteration, and at most {2**31 - 1:,} can be indexed: choose smaller numbers."
            )
        _refuse_bytes(f"{above}rollout_length", rollout, LEAST_TRANSITION * max(1, num_envs), "transitions")
        _refuse_bytes(f"{above}eval_episodes", episodes, LEAST_TRANSITION, "episodes")
    _refuse_many_simulators(config)


def _refuse_bytes(name: str, number: int, bytes_of_each: int, what: str) -> None:
    """Raise ``ValueError`` if ``number`` items do not fit the memory."""
    if number * bytes_of_each < LEAST_CHECKED:
        return
    from evorl.execution.memory import MEMORY_SHARE, available_bytes, rounded, shown_bytes

    available = available_bytes()
    if available is None or number * bytes_of_each <= MEMORY_SHARE * available:
        return
    most = int(MEMORY_SHARE * available / bytes_of_each)
    raise ValueError(
        f"{name}={number:,} is too large for {shown_bytes(available)} of memory, whatever the environment: the largest "
        f"that may fit is {rounded(most):,}, of {what} of {bytes_of_each:,} bytes. {FLAG} shows the size of "
        "this environment's."
    )


def _refuse_many_simulators(config: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for more simulators outside JAX than a machine can start."""
    from evorl.envs.factory import HOST_LIBRARIES

    env = config.get("env")
    library = env.get("library") if isinstance(env, Mapping) else None
    number = _number(config.get("num_envs"))
    if library in HOST_LIBRARIES and number > MOST_SIMULATORS:
        raise ValueError(
            f"num_envs={number:,} simulators of {library} are too many, each of which is started by itself: choose "
            f"{MOST_SIMULATORS:,} at most, or an environment in JAX."
        )


def _number(value: Any) -> int:
    """Return a size of the config; 0 for an invalid one, which is refused where it is used."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 < value < 1e300 else 0


def file_lines(config: Mapping[str, Any], plan: Preflight) -> list[str]:
    """Where the run would write, and how much its checkpoints would take."""
    from evorl.cli.overrides import draws_learning_curve
    from evorl.execution.memory import shown_bytes

    recorders = config["recorders"]
    names = ["config.yaml", "metrics.csv", "metrics.jsonl", "run.log"]
    names += ["learning_curve.png"] if draws_learning_curve(config) else []
    names += ["tensorboard/"] if recorders["tensorboard"] else []
    evaluation = config["evaluation"]
    names += ["episodes/"] if evaluation["save_episodes"] else []
    names += ["plots/"] if evaluation["plot_episodes"] else []
    kept = config["checkpoints_kept"] + config.get("best_checkpoints_kept", 1)
    size = shown_bytes(sum(plan.entries.values()) * plan.num_devices)
    return [
        f"files         {config['runs_folder']}/.../: {', '.join(names)}, checkpoints/ ({kept} of up to {size} each)"
    ]
