"""The speed comparisons, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.comparison import Bar, Comparison, Side, ratio

PPO = "evorl.algorithms.ppo.PPOWorkflow"
TRAINING = "benchmarks.drivers.training"
FLOOR = "benchmarks.drivers.floor"
REJAX = "benchmarks.peers.rejax_training"

CARTPOLE = {"library": "gymnax", "name": "CartPole-v1"}
OPTIMIZER = {"learning_rate": 2.5e-4, "max_grad_norm": 0.5}
PPO_CARTPOLE = {
    "workflow": PPO,
    "env": CARTPOLE,
    "num_envs": 4,
    "rollout_length": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "optimizer": OPTIMIZER,
    "agent": {"network": {"hidden_sizes": [64, 64], "activation": "tanh"}},
    "devices": "auto",
}
REJAX_CARTPOLE = {
    "env": "CartPole-v1",
    "num_envs": 4,
    "num_steps": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    **OPTIMIZER,
    "agent_kwargs": {"hidden_layer_sizes": [64, 64], "activation": "tanh"},
}


def hopper(backend: str, num_envs: int) -> dict[str, Any]:
    """Arguments of ``create_env``."""
    return {"library": "brax", "name": "hopper", "backend": backend, "parallel": num_envs}


def ppo_hopper(backend: str, num_envs: int, rollout_length: int, **changes: Any) -> dict[str, Any]:
    """PPO as brax users run it: wide networks, normalised observations."""
    return {
        "workflow": PPO,
        "env": {"library": "brax", "name": "hopper", "backend": backend},
        "num_envs": num_envs,
        "rollout_length": rollout_length,
        "num_epochs": 4,
        "num_minibatches": 8,
        "optimizer": OPTIMIZER,
        "agent": {"normalize_obs": True, "network": {"hidden_sizes": [256, 256]}},
        "devices": "auto",
        **changes,
    }


def training(config: Mapping[str, Any], steps: int, warmup_steps: int, **settings: Any) -> Side:
    """A training of this package; steps of each seed."""
    return Side(TRAINING, {"config": config, "steps": steps, "warmup_steps": warmup_steps, **settings})


def rejax(algorithm: str, config: Mapping[str, Any], steps: int, **settings: Any) -> Side:
    """A training of rejax; steps of each seed."""
    return Side(REJAX, {"algorithm": algorithm, "config": config, "steps": steps, **settings}, python="rejax")


def floor(env: Mapping[str, Any], steps: int) -> Side:
    """Random actions on one device."""
    return Side(FLOOR, {"env": env, "steps": steps})


def _ppo_hopper_generalized() -> Comparison:
    steps = 32_768
    return Comparison(
        "ppo_hopper_generalized",
        "PPO, brax hopper (generalized), 64 envs x 32, 4 epochs x 8 minibatches, 256-256, observation normalisation",
        sides={
            "evorl": training(ppo_hopper("generalized", 64, 32), steps, 16_384),
            "evorl, one device": training(ppo_hopper("generalized", 64, 32, devices=1), steps, 16_384),
            "floor": floor(hopper("generalized", 64), steps),
        },
        bars=[
            Bar("evorl / floor", ratio("evorl", "floor"), at_least=1.25),
            Bar("evorl / one device", ratio("evorl", "evorl, one device"), at_least=1.55),
        ],
    )


def _ppo_hopper_mjx() -> Comparison:
    return Comparison(
        "ppo_hopper_mjx",
        "PPO, brax hopper (mjx), 512 envs x 10, 4 epochs x 8 minibatches, 256-256, observation normalisation",
        sides={
            "evorl": training(ppo_hopper("mjx", 512, 10), 51_200, 20_480),
            "floor": floor(hopper("mjx", 512), 15_360),
        },
        bars=[Bar("evorl / floor", ratio("evorl", "floor"), at_least=3.0)],
    )


def _ppo_cartpole(num_seeds: int, at_least: float, steps: int) -> Comparison:
    name = "ppo_cartpole_1seed" if num_seeds == 1 else f"ppo_cartpole_{num_seeds}seeds"
    return Comparison(
        name,
        f"PPO, CartPole, 4 envs x 128, 4 epochs x 4 minibatches, 64-64, {num_seeds} seed{'s' * (num_seeds > 1)}",
        sides={
            "evorl": training({**PPO_CARTPOLE, "num_seeds": num_seeds}, steps, steps),
            "rejax": rejax("ppo", REJAX_CARTPOLE, steps, num_seeds=num_seeds),
        },
        bars=[Bar("evorl / rejax", ratio("evorl", "rejax"), at_least=at_least)],
    )


COMPARISONS = {
    comparison.name: comparison
    for comparison in (
        _ppo_hopper_generalized(),
        _ppo_hopper_mjx(),
        _ppo_cartpole(1, 1.0, 256_000),
        _ppo_cartpole(8, 2.0, 64_000),
    )
}
