"""Comparisons of evolution: with evosax and its own rollout problems, and with the environments alone."""

from __future__ import annotations

from typing import Any

from benchmarks.comparison import Bar, Comparison, Side, ratio

TRAINING = "benchmarks.drivers.training"
FLOOR = "benchmarks.drivers.floor"
EVOSAX = "benchmarks.peers.evosax_evolution"
NEUROEVOLUTION = "evorl.algorithms.neuroevolution.NeuroevolutionWorkflow"
HIDDEN = [16, 16]

CARTPOLE = {"library": "gymnax", "name": "CartPole-v1"}
PENDULUM = {"library": "gymnax", "name": "Pendulum-v1"}
# Hoppers that fall go on lying: every episode has 1000 steps on both sides.
LYING = {"terminate_when_unhealthy": False}
HOPPER = {"library": "brax", "name": "hopper", "backend": "spring", **LYING}
EPISODE_LENGTHS = {"CartPole-v1": 500, "Pendulum-v1": 200, "hopper": 1000}
OPEN_ES = {
    "name": "openes",
    "lr_schedule": {"init": 0.02, "final": 0.001, "decay": 0.99},
    "noise_std_schedule": {"init": 0.1, "final": 0.02, "decay": 0.99},
}
CMA_ES = {"name": "cmaes", "initial_std": 0.1}


def evolution(env: dict[str, Any], optimizer: dict[str, Any], steps: int, warmup_steps: int, **changes: Any) -> Side:
    """Generations of policies of 16-16; steps are those that were played."""
    config = {
        "workflow": NEUROEVOLUTION,
        "env": env,
        "optimizer": optimizer,
        "agent": {"network": {"torso": HIDDEN, "activation": "tanh"}},
        "log_interval": 1,
        "devices": "auto",
        **changes,
    }
    return Side(TRAINING, {"config": config, "steps": steps, "warmup_steps": warmup_steps})


def evosax(env: dict[str, Any], strategy: str, pop_size: int, generations: int, warmup: int) -> Side:
    """The same generations with evosax."""
    settings = {
        "strategy": strategy,
        "pop_size": pop_size,
        "initial_std": 0.1,
        "hidden_sizes": HIDDEN,
        "library": env["library"],
        "env": env["name"],
        "env_options": {key: value for key, value in env.items() if key not in ("library", "name")},
        "episode_length": EPISODE_LENGTHS[env["name"]],
        "generations": generations,
        "warmup_generations": warmup,
    }
    return Side(EVOSAX, settings)


def against_evosax(
    name: str,
    title: str,
    env: dict[str, Any],
    strategies: tuple[dict[str, Any], str],
    generations: int,
    at_least: float,
    warmup: int = 0,
    pop_size: int = 256,
) -> Comparison:
    """Steps per second of both; where episodes can end early, after a warm-up that makes them long."""
    ours, theirs = strategies
    steps = pop_size * EPISODE_LENGTHS[env["name"]]
    return Comparison(
        name,
        f"{title}, population {pop_size}, 16-16",
        sides={
            "evorl": evolution(env, {**ours, "pop_size": pop_size}, generations * steps, max(1, warmup) * steps),
            "evosax": evosax(env, theirs, pop_size, generations, warmup),
        },
        bars=[Bar("evorl / evosax", ratio("evorl", "evosax"), at_least=at_least)],
    )


def against_floor(pop_size: int, at_least: float) -> Comparison:
    """One device, hopper: how much of the environments' speed is left when policies act and are evolved."""
    steps = pop_size * EPISODE_LENGTHS["hopper"]
    return Comparison(
        f"openes_hopper_floor_{pop_size}",
        f"OpenES and random actions, brax hopper (spring), population {pop_size}, 16-16, one device",
        sides={
            "evorl": evolution(HOPPER, {**OPEN_ES, "pop_size": pop_size}, steps, steps, devices=1),
            "floor": Side(
                FLOOR, {"env": {**HOPPER, "parallel": pop_size, "autoreset_mode": "disabled"}, "steps": steps}
            ),
        },
        bars=[Bar("evorl / floor", ratio("evorl", "floor"), at_least=at_least)],
    )


EVOLUTION_COMPARISONS = (
    against_evosax("openes_cartpole", "OpenES, CartPole", CARTPOLE, (OPEN_ES, "Open_ES"), 200, 1.5, warmup=80),
    against_evosax("openes_pendulum", "OpenES, Pendulum", PENDULUM, (OPEN_ES, "Open_ES"), 400, 1.5),
    against_evosax("openes_hopper", "OpenES, brax hopper (spring)", HOPPER, (OPEN_ES, "Open_ES"), 1, 1.7),
    against_evosax("cmaes_pendulum", "CMA-ES, Pendulum", PENDULUM, (CMA_ES, "CMA_ES"), 50, 1.2),
    against_floor(256, 0.85),
    against_floor(64, 0.85),
    against_floor(16, 0.85),
)
