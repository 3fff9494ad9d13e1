"""What is to be learned by evolution, and by evolution and gradients together."""

from __future__ import annotations

from benchmarks.learning_task import LearningTask

EVOLUTION = ("env=cartpole", "num_seeds=3", "eval_episodes=20", "total_timesteps=3000000")
PBT_PENDULUM = ("agent=meta/pbt", "env=pendulum", "num_seeds=3", "eval_episodes=20", "eval_interval=100000")
SWIMMER = ("env=swimmer", "num_seeds=3", "eval_episodes=20")
HOPPER = ("env=hopper", "num_seeds=3", "eval_episodes=20")
QUALITY_DIVERSITY = (
    "env=pendulum",
    "num_seeds=3",
    "eval_episodes=20",
    "descriptors=[next_obs.0,next_obs.2]",
    "archive.low=[-1,-6]",
    "archive.high=[1,6]",
    "archive.bins=[16,16]",
    "fitness_offset=-3300",
    "total_timesteps=2560000",
)

EVOLUTION_TASKS = (
    LearningTask(
        "openes_cartpole",
        "OpenES, CartPole-v1 (gymnax)",
        ("agent=ec/openes", *EVOLUTION),
        threshold=475,
        within_timesteps=3_000_000,
    ),
    LearningTask(
        "ars_cartpole",
        "ARS, linear policy, CartPole-v1 (gymnax)",
        ("agent=ec/ars", *EVOLUTION),
        threshold=475,
        within_timesteps=3_000_000,
    ),
    LearningTask(
        "cmaes_cartpole",
        "CMA-ES, CartPole-v1 (gymnax)",
        ("agent=ec/cmaes", *EVOLUTION),
        threshold=475,
        within_timesteps=3_000_000,
    ),
    LearningTask(
        "sepcem_cartpole",
        "CEM, CartPole-v1 (gymnax)",
        ("agent=ec/sepcem", *EVOLUTION),
        threshold=475,
        within_timesteps=3_000_000,
    ),
    LearningTask(
        "pbt_pendulum",
        "PBT over PPO, 8 members, Pendulum-v1 (gymnax), steps of all members",
        (*PBT_PENDULUM, "explore=perturb"),
        threshold=-300,
        within_timesteps=1_600_000,
    ),
    LearningTask(
        "pbt_cso_pendulum",
        "PBT over PPO by a competitive swarm, 8 members, Pendulum-v1 (gymnax), steps of all members",
        (*PBT_PENDULUM, "explore=cso"),
        threshold=-300,
        within_timesteps=1_600_000,
    ),
    LearningTask(
        "pbt_without_selection_pendulum",
        "the best of 8 fixed settings of PPO from the same search space, Pendulum-v1 (gymnax)",
        (*PBT_PENDULUM, "exploit=false"),
        threshold=-400,
        within_timesteps=1_600_000,
        solvable=False,
    ),
    LearningTask(
        "pbt_median_of_fixed_pendulum",
        "the median of these 8 fixed settings in training, Pendulum-v1 (gymnax)",
        (*PBT_PENDULUM, "exploit=false"),
        threshold=-400,
        within_timesteps=1_600_000,
        solvable=False,
        score="train/score_median",
    ),
    LearningTask(
        "map_elites_pendulum",
        "MAP-Elites by angle and speed, 256 cells, Pendulum-v1 (gymnax)",
        ("agent=qd/map_elites", *QUALITY_DIVERSITY),
        threshold=240_000,
        within_timesteps=2_560_000,
        score="train/qd_score",
    ),
    LearningTask(
        "pga_me_pendulum",
        "PGA-ME by angle and speed, 256 cells, Pendulum-v1 (gymnax)",
        ("agent=qd/pga_me", *QUALITY_DIVERSITY),
        threshold=260_000,
        within_timesteps=2_560_000,
        score="train/qd_score",
    ),
    LearningTask(
        "nsga2_swimmer",
        "NSGA-II, speed forwards and effort, swimmer (brax)",
        (
            "agent=ec/nsga2",
            "env=swimmer",
            "eval_episodes=20",
            "objectives=[metrics.reward_fwd,metrics.reward_ctrl]",
            "reference=[0,-50]",
            "optimizer.pop_size=64",
            "total_timesteps=3200000",
        ),
        threshold=10_000,
        within_timesteps=3_200_000,
        score="train/hypervolume",
    ),
    LearningTask(
        "td3_swimmer",
        "TD3, swimmer (brax)",
        ("agent=td3", *SWIMMER),
        threshold=30,
        within_timesteps=132_000,
    ),
    LearningTask(
        "cemrl_swimmer",
        "CEM-RL with TD3, swimmer (brax)",
        ("agent=erl/cemrl", *SWIMMER),
        threshold=30,
        within_timesteps=132_000,
    ),
    LearningTask(
        "erl_swimmer",
        "ERL with TD3 and a genetic algorithm, swimmer (brax)",
        ("agent=erl/erl", *SWIMMER),
        threshold=30,
        within_timesteps=132_000,
    ),
    LearningTask(
        "td3_hopper",
        "TD3, hopper (brax)",
        ("agent=td3", *HOPPER),
        threshold=1000,
        within_timesteps=200_000,
    ),
    LearningTask(
        "cemrl_hopper",
        "CEM-RL with TD3, hopper (brax)",
        ("agent=erl/cemrl", *HOPPER),
        threshold=1000,
        within_timesteps=200_000,
    ),
    LearningTask(
        "openes_swimmer",
        "OpenES, linear policy, swimmer (brax)",
        ("agent=ec/openes", *SWIMMER),
        threshold=100,
        within_timesteps=300_000,
    ),
    LearningTask(
        "openes_hopper",
        "OpenES, linear policy, hopper (brax)",
        ("agent=ec/openes", *HOPPER),
        threshold=1000,
        within_timesteps=200_000,
    ),
)
