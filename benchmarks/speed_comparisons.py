"""The speed comparisons, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.comparison import Bar, Comparison, Side, ratio
from benchmarks.evolution_comparisons import EVOLUTION_COMPARISONS
from benchmarks.process_comparisons import PROCESS_COMPARISONS

PPO = "evorl.algorithms.ppo.PPOWorkflow"
PBT = "evorl.algorithms.pbt.PBTWorkflow"
SAC = "evorl.algorithms.sac.SACWorkflow"
DQN = "evorl.algorithms.dqn.DQNWorkflow"
TD3 = "evorl.algorithms.td3.TD3Workflow"
TRAINING = "benchmarks.drivers.training"
FLOOR = "benchmarks.drivers.floor"
REPLAY = "benchmarks.drivers.replay_adding"
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
    "agent": {"network": {"torso": [64, 64], "activation": "tanh"}},
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


SAC_HOPPER = {
    "workflow": SAC,
    "env": {"library": "brax", "name": "hopper", "backend": "generalized"},
    "num_envs": 1,
    "rollout_length": 1,
    "updates_per_iteration": 1,
    "batch_size": 256,
    "learning_starts": 1000,
    "replay_capacity": 100_000,
    "agent": {"network": {"torso": [256, 256]}},
    "devices": "auto",
}
REJAX_SAC_HOPPER = {
    "env": "brax/hopper",
    "env_params": {"backend": "generalized"},
    "num_envs": 1,
    "num_epochs": 1,
    "batch_size": 256,
    "fill_buffer": 1000,
    "buffer_size": 100_000,
    "polyak": 0.995,
    "hidden_layer_sizes": [256, 256],
}

# The settings that rejax publishes for these environments, with networks of 64-64 (its default) on both sides.
DQN_CARTPOLE = {
    "workflow": DQN,
    "env": CARTPOLE,
    "num_envs": 10,
    "rollout_length": 1,
    "updates_per_iteration": 5,
    "batch_size": 100,
    "learning_starts": 5000,
    "replay_capacity": 50_000,
    "target_update_interval": 5,
    "tau": 0.02,
    "optimizer": {"learning_rate": 1e-3, "max_grad_norm": 10.0},
    "agent": {"network": {"torso": [64, 64], "activation": "swish"}},
    "devices": "auto",
}
REJAX_DQN_CARTPOLE = {
    "env": "CartPole-v1",
    "agent_kwargs": {"activation": "swish"},
    "num_envs": 10,
    "num_epochs": 5,
    "batch_size": 100,
    "fill_buffer": 5000,
    "buffer_size": 50_000,
    "polyak": 0.98,
    "learning_rate": 1e-3,
    "max_grad_norm": 10.0,
    "exploration_fraction": 0.5,
}
PENDULUM = {"library": "gymnax", "name": "Pendulum-v1"}
SAC_PENDULUM = {
    "workflow": SAC,
    "env": PENDULUM,
    "num_envs": 1,
    "rollout_length": 1,
    "updates_per_iteration": 1,
    "batch_size": 256,
    "learning_starts": 256,
    "replay_capacity": 10_000,
    "agent": {"network": {"torso": [64, 64], "activation": "swish"}, "normalize_obs": True},
    "devices": "auto",
}
REJAX_SAC_PENDULUM = {
    "env": "Pendulum-v1",
    "agent_kwargs": {"activation": "swish"},
    "num_envs": 1,
    "num_epochs": 1,
    "batch_size": 256,
    "fill_buffer": 256,
    "buffer_size": 10_000,
    "polyak": 0.995,
    "normalize_observations": True,
}

TD3_PENDULUM = {
    "workflow": TD3,
    "env": PENDULUM,
    "num_envs": 1,
    "rollout_length": 1,
    "updates_per_iteration": 1,
    "policy_delay": 2,
    "batch_size": 100,
    "learning_starts": 1000,
    "replay_capacity": 10_000,
    "agent": {"network": {"torso": [64, 64], "activation": "swish"}, "normalize_obs": True},
    "devices": "auto",
}
REJAX_TD3_PENDULUM = {
    "env": "Pendulum-v1",
    "actor_kwargs": {"activation": "swish"},
    "critic_kwargs": {"activation": "swish"},
    "num_envs": 1,
    "num_epochs": 1,
    "policy_delay": 2,
    "batch_size": 100,
    "fill_buffer": 1000,
    "buffer_size": 10_000,
    "polyak": 0.995,
    "normalize_observations": True,
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
        "agent": {"normalize_obs": True, "network": {"torso": [256, 256]}},
        "devices": "auto",
        **changes,
    }


def training(config: Mapping[str, Any], steps: int, warmup_steps: int, **settings: Any) -> Side:
    """A training of this package; steps of each seed."""
    return Side(TRAINING, {"config": config, "steps": steps, "warmup_steps": warmup_steps, **settings})


def rejax(algorithm: str, config: Mapping[str, Any], steps: int, **settings: Any) -> Side:
    """A training of rejax; steps of each seed."""
    return Side(REJAX, {"algorithm": algorithm, "config": config, "steps": steps, **settings}, python="rejax")


def floor(env: Mapping[str, Any], steps: int, **settings: Any) -> Side:
    """Random actions on one device; steps of each seed."""
    return Side(FLOOR, {"env": env, "steps": steps, **settings})


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


def _pbt_cartpole() -> Comparison:
    steps = 384_000  # enough that the picture of the schedule, which a run ends with, counts little
    inner = {key: value for key, value in PPO_CARTPOLE.items() if key not in ("env", "devices")}
    population = {
        "workflow": PBT,
        "env": CARTPOLE,
        "inner": inner,
        "num_members": 8,
        "search_space": {
            "optimizer.learning_rate": {"low": 1e-4, "high": 1e-2, "scale": "log"},
            "agent.clip_epsilon": {"low": 0.05, "high": 0.5, "scale": "log"},
            "agent.entropy_coefficient": {"low": 1e-4, "high": 0.1, "scale": "log"},
        },
        "devices": "auto",
    }
    return Comparison(
        "pbt_cartpole",
        "PBT of 8 members, and 8 seeds, PPO CartPole as in ppo_cartpole_8seeds, a selection every 5,000 steps",
        sides={
            "population": training(population, 8 * steps, 8 * steps),
            "seeds": training({**PPO_CARTPOLE, "num_seeds": 8}, steps, steps),
        },
        bars=[Bar("population / seeds", ratio("population", "seeds"), at_least=1 / 1.15)],
    )


def _sac_hopper() -> Comparison:
    steps = 1500
    return Comparison(
        "sac_hopper",
        "SAC, brax hopper (generalized), 1 env, 1 update of 256 per step, 256-256",
        sides={"evorl": training(SAC_HOPPER, steps, 2 * steps), "rejax": rejax("sac", REJAX_SAC_HOPPER, steps)},
        bars=[Bar("evorl / rejax", ratio("evorl", "rejax"), at_least=1.1)],
    )


def _dqn_cartpole() -> Comparison:
    steps = 50_000
    return Comparison(
        "dqn_cartpole",
        "DQN (double), CartPole, 10 envs, 5 updates of 100 per step, 64-64, capacity 50,000",
        sides={
            "evorl": training(DQN_CARTPOLE, steps, steps),
            "rejax": rejax("dqn", REJAX_DQN_CARTPOLE, steps),
        },
        bars=[Bar("evorl / rejax", ratio("evorl", "rejax"), at_least=1.3)],
    )


def _sac_pendulum() -> Comparison:
    steps = 10_000
    return Comparison(
        "sac_pendulum",
        "SAC, Pendulum, 1 env, 1 update of 256 per step, 64-64, capacity 10,000, observation normalisation",
        sides={
            "evorl": training(SAC_PENDULUM, steps, steps),
            "rejax": rejax("sac", REJAX_SAC_PENDULUM, steps),
        },
        bars=[Bar("evorl / rejax", ratio("evorl", "rejax"), at_least=1.2)],
    )


def _td3_pendulum() -> Comparison:
    steps = 10_000
    return Comparison(
        "td3_pendulum",
        "TD3, Pendulum, 1 env, 1 update of 100 per step, 64-64, capacity 10,000, observation normalisation",
        sides={
            "evorl": training(TD3_PENDULUM, steps, steps),
            "rejax": rejax("td3", REJAX_TD3_PENDULUM, steps),
        },
        bars=[Bar("evorl / rejax", ratio("evorl", "rejax"), at_least=1.2)],
    )


def _memory_ppo() -> Comparison:
    steps = 256_000
    config = {**PPO_CARTPOLE, "num_envs": 64}
    # A step of a GRU has six times the products of a dense layer of its width: one, which both heads share, stands for
    # the second layer, as recurrent agents are usually built.
    memory = {"type": "gru", "size": 64}
    network = {**PPO_CARTPOLE["agent"]["network"], "torso": [64], "memory": memory, "shared": True}
    return Comparison(
        "memory_ppo",
        "PPO with one GRU of 64 on 64, and with two networks of 64-64, CartPole, 64 envs x 128, 4 x 4 minibatches",
        sides={
            "with memory": training({**config, "agent": {"network": network}}, steps, steps),
            "without": training(config, steps, steps),
        },
        bars=[Bar("with / without memory", ratio("with memory", "without"), at_least=0.333)],
    )


def _autoreset(num_seeds: int | None, steps: int) -> Comparison:
    def side(mode: str) -> Side:
        settings = {} if num_seeds is None else {"num_seeds": num_seeds}
        return floor({**hopper("generalized", 64), "autoreset_mode": mode}, steps, **settings)

    over_seeds = "" if num_seeds is None else f", vmapped over {num_seeds} seeds"
    return Comparison(
        "autoreset_normal" if num_seeds is None else f"autoreset_normal_{num_seeds}seeds",
        f"Autoreset NORMAL and FAST, brax hopper (generalized), 64 envs, random actions, one device{over_seeds}",
        sides={"NORMAL": side("normal"), "FAST": side("fast")},
        bars=[Bar("NORMAL / FAST", ratio("NORMAL", "FAST"), at_least=0.95)],
    )


def _recorders() -> Comparison:
    steps = 512_000
    return Comparison(
        "recorders",
        "Recorders and progress on and off, PPO CartPole as in ppo_cartpole_1seed, a row every 5,000 steps",
        sides={
            "on": training(PPO_CARTPOLE, steps, steps),
            "off": training(PPO_CARTPOLE, steps, steps, recording=False),
        },
        bars=[Bar("on / off", ratio("on", "off"), at_least=0.98)],
    )


def _replay_add() -> Comparison:
    def side(capacity: int) -> Side:
        return Side(REPLAY, {"capacity": capacity, "adds": 1_000_000, "obs_size": 11, "action_size": 3})

    return Comparison(
        "replay_add",
        "Time to add one transition of hopper's size to a replay buffer of 1e4 and of 1e6 rows",
        sides={"1e4 rows": side(10_000), "1e6 rows": side(1_000_000)},
        bars=[Bar("time at 1e4 / at 1e6 rows", ratio("1e4 rows", "1e6 rows", "add_seconds"), at_least=0.8)],
        quantity="add_seconds",
    )


COMPARISONS = {
    comparison.name: comparison
    for comparison in (
        _ppo_hopper_generalized(),
        _ppo_hopper_mjx(),
        _ppo_cartpole(1, 1.0, 256_000),
        _ppo_cartpole(8, 2.0, 64_000),
        _pbt_cartpole(),
        _sac_hopper(),
        _dqn_cartpole(),
        _sac_pendulum(),
        _td3_pendulum(),
        _memory_ppo(),
        _autoreset(None, 32_768),
        _autoreset(4, 8_192),
        _recorders(),
        _replay_add(),
        *EVOLUTION_COMPARISONS,
        *PROCESS_COMPARISONS,
    )
}
