"""``--plan``: what a training will need, and which files it will write, without building anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evorl.execution.preflight import Preflight

FLAG = "--plan"
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
    """Refuse at once, before environments are made, a replay buffer that no environment is small enough for.

    Raises:
        ValueError: with the most that any environment's transitions could leave room for.
    """
    parts = [(name, config.get(name)) for name in ("inner", "learner")]
    nodes = [("", config), *((f"{name}.", part) for name, part in parts if isinstance(part, Mapping))]
    for above, node in nodes:
        capacity = node.get("replay_capacity")
        if isinstance(capacity, bool) or not isinstance(capacity, int | float) or capacity < 1e8:
            continue
        from evorl.execution.memory import MEMORY_SHARE, available_bytes, rounded, shown_bytes

        available = available_bytes()
        if available is None or capacity * LEAST_TRANSITION <= MEMORY_SHARE * available:
            continue
        most = int(MEMORY_SHARE * available / LEAST_TRANSITION)
        raise ValueError(
            f"{above}replay_capacity={capacity:,.0f} is too large for {shown_bytes(available)} of memory, whatever the "
            f"environment: the largest that may fit is {rounded(most):,}, of transitions of {LEAST_TRANSITION} bytes. "
            f"{FLAG} says what this environment's take."
        )


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
