"""What is to be learned, by name: an algorithm in an environment, with a return to reach."""

from __future__ import annotations

from benchmarks.evolution_tasks import EVOLUTION_TASKS
from benchmarks.learning_task import LearningTask, Published


def _zoo(timesteps: int, mean: float, spread: float) -> Published:
    """A row of their table: one training, and the deterministic policy's return over episodes after it."""
    source = "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md"
    return Published("RL Baselines3 Zoo", source, timesteps, mean, spread)


def _rejax(config: str, timesteps: int) -> Published:
    """The length of training in one of their configs."""
    return Published("rejax", f"https://github.com/keraJLi/rejax/blob/main/configs/{config}.yaml", timesteps)


BLINES = "https://github.com/RobertTLange/gymnax-blines/blob/main/agents"
MEMORY_CHAIN = ("agent=ppo", "env=memory_chain", "num_seeds=3", "eval_episodes=20")
HIDDEN_VELOCITIES = ("env=cartpole_hidden_velocities", "num_seeds=3", "eval_episodes=20", "eval_interval=25000")
TASKS = {
    task.name: task
    for task in (
        LearningTask(
            "ppo_cartpole",
            "PPO, CartPole-v1 (gymnax)",
            ("agent=ppo", "env=cartpole", "num_seeds=3", "total_timesteps=200000", "eval_episodes=20"),
            threshold=475,
            within_timesteps=200_000,
            published=_zoo(100_000, 500.0, 0.0),
        ),
        LearningTask(
            "reinforce_cartpole",
            "REINFORCE, CartPole-v1 (gymnax)",
            ("agent=reinforce", "env=cartpole", "num_seeds=3", "eval_episodes=20", "eval_interval=25000"),
            threshold=400,
            within_timesteps=500_000,
        ),
        LearningTask(
            "a2c_cartpole",
            "A2C, CartPole-v1 (gymnax)",
            ("agent=a2c", "env=cartpole", "num_seeds=3", "eval_episodes=20", "eval_interval=25000"),
            threshold=475,
            within_timesteps=500_000,
            published=_zoo(500_000, 500.0, 0.0),
        ),
        LearningTask(
            "a2c_acrobot",
            "A2C, Acrobot-v1 (gymnax)",
            ("agent=a2c", "env=acrobot", "num_seeds=3", "eval_episodes=20", "eval_interval=25000"),
            threshold=-100,
            within_timesteps=500_000,
            published=_zoo(500_000, -83.353, 17.213),
        ),
        LearningTask(
            "impala_cartpole",
            "IMPALA, CartPole-v1 (gymnax)",
            ("agent=impala", "env=cartpole", "num_seeds=3", "eval_episodes=20", "eval_interval=25000"),
            threshold=475,
            within_timesteps=500_000,
        ),
        LearningTask(
            "ppo_acrobot",
            "PPO, Acrobot-v1 (gymnax)",
            ("agent=ppo", "env=acrobot", "num_seeds=3", "eval_episodes=20", "eval_interval=25000"),
            threshold=-100,
            within_timesteps=200_000,
            published=_zoo(1_000_000, -73.506, 18.201),
        ),
        LearningTask(
            "trpo_cartpole",
            "TRPO, CartPole-v1 (gymnax)",
            ("agent=trpo", "env=cartpole", "num_seeds=3", "eval_episodes=20", "eval_interval=10000"),
            threshold=475,
            within_timesteps=100_000,
            published=_zoo(100_000, 500.0, 0.0),
        ),
        LearningTask(
            "trpo_d1_cartpole",
            "TRPO from first derivatives, CartPole-v1 (gymnax)",
            ("agent=trpo", "subtype=trpo-d1", "env=cartpole", "num_seeds=3", "eval_episodes=20", "eval_interval=10000"),
            threshold=475,
            within_timesteps=100_000,
        ),
        LearningTask(
            "trpo_ppo_cartpole",
            "TRPO with clipped steps, CartPole-v1 (gymnax)",
            ("agent=trpo", "subtype=ppo", "env=cartpole", "num_seeds=3", "eval_episodes=20", "eval_interval=10000"),
            threshold=475,
            within_timesteps=100_000,
        ),
        LearningTask(
            "pqn_cartpole",
            "PQN, CartPole-v1 (gymnax)",
            ("agent=pqn", "env=cartpole", "num_seeds=3", "eval_episodes=20", "eval_interval=25000"),
            threshold=475,
            within_timesteps=300_000,
            published=_rejax("gymnax/cartpole", 524_288),
        ),
        LearningTask(
            "dqn_cartpole",
            "DQN, CartPole-v1 (gymnax)",
            ("agent=dqn", "env=cartpole", "num_seeds=3", "eval_episodes=20", "eval_interval=10000"),
            threshold=475,
            within_timesteps=60_000,
            published=_zoo(50_000, 500.0, 0.0),
        ),
        LearningTask(
            "dqn_acrobot",
            "DQN, Acrobot-v1 (gymnax)",
            ("agent=dqn", "env=acrobot", "num_seeds=3", "eval_episodes=20", "eval_interval=25000"),
            threshold=-100,
            within_timesteps=200_000,
            published=_zoo(100_000, -76.639, 11.752),
        ),
        LearningTask(
            "r2d2_cartpole",
            "R2D2, CartPole-v1 without its velocities (gymnax)",
            ("agent=r2d2", *HIDDEN_VELOCITIES),
            threshold=475,
            within_timesteps=300_000,
        ),
        LearningTask(
            "dqn_cartpole_without_velocities",
            "DQN, without a memory, CartPole-v1 without its velocities (gymnax)",
            ("agent=dqn", *HIDDEN_VELOCITIES),
            threshold=200,
            within_timesteps=200_000,
            solvable=False,
        ),
        LearningTask(
            "rainbow_cartpole",
            "Rainbow, CartPole-v1 (gymnax)",
            ("agent=rainbow", "env=cartpole", "num_seeds=3", "eval_episodes=20", "eval_interval=25000"),
            threshold=475,
            within_timesteps=200_000,
        ),
        LearningTask(
            "sac_pendulum",
            "SAC, Pendulum-v1 (gymnax)",
            ("agent=sac", "env=pendulum", "num_seeds=3", "total_timesteps=30000", "eval_episodes=20"),
            threshold=-200,
            within_timesteps=30_000,
            published=_zoo(20_000, -156.995, 88.714),
        ),
        LearningTask(
            "tqc_pendulum",
            "TQC, Pendulum-v1 (gymnax)",
            ("agent=tqc", "env=pendulum", "num_seeds=3", "eval_episodes=20"),
            threshold=-200,
            within_timesteps=20_000,
        ),
        LearningTask(
            "discor_pendulum",
            "DisCor, Pendulum-v1 (gymnax)",
            ("agent=discor", "env=pendulum", "num_seeds=3", "eval_episodes=20"),
            threshold=-200,
            within_timesteps=20_000,
        ),
        LearningTask(
            "crossq_pendulum",
            "CrossQ, Pendulum-v1 (gymnax)",
            ("agent=crossq", "env=pendulum", "num_seeds=3", "eval_episodes=20"),
            threshold=-200,
            within_timesteps=20_000,
        ),
        LearningTask(
            "sac_cartpole",
            "SAC with discrete actions, CartPole-v1 (gymnax)",
            ("agent=sac", "env=cartpole", "num_seeds=3", "total_timesteps=60000", "eval_episodes=20"),
            threshold=400,
            within_timesteps=60_000,
            published=_rejax("gymnax/cartpole", 50_000),
        ),
        LearningTask(
            "ppo_memory_chain",
            "PPO with a GRU, MemoryChain-bsuite (gymnax)",
            (*MEMORY_CHAIN, "agent.network.memory=gru"),
            threshold=0.9,
            within_timesteps=100_000,
        ),
        LearningTask(
            "ppo_memory_chain_without_memory",
            "PPO without a memory, MemoryChain-bsuite (gymnax)",
            MEMORY_CHAIN,
            threshold=0.9,
            within_timesteps=100_000,
            solvable=False,
        ),
        LearningTask(
            "ppo_breakout",
            "PPO, Breakout-MinAtar (gymnax)",
            ("agent=ppo", "env=breakout", "num_seeds=3", "eval_episodes=20"),
            threshold=10,
            within_minutes=15,
            published=Published("gymnax-blines", f"{BLINES}/Breakout-MinAtar/ppo.yaml", 10_000_000),
        ),
        LearningTask(
            "td3_pendulum",
            "TD3, Pendulum-v1 (gymnax)",
            ("agent=td3", "env=pendulum", "num_seeds=3", "eval_episodes=20", "eval_interval=2500"),
            threshold=-200,
            within_timesteps=20_000,
            published=_zoo(20_000, -151.855, 90.227),
        ),
        LearningTask(
            "ddpg_pendulum",
            "DDPG, Pendulum-v1 (gymnax)",
            ("agent=ddpg", "env=pendulum", "num_seeds=3", "eval_episodes=20", "eval_interval=2500"),
            threshold=-200,
            within_timesteps=20_000,
            published=_zoo(20_000, -152.099, 94.282),
        ),
        LearningTask(
            "fast_td3_pendulum",
            "FastTD3, Pendulum-v1 (gymnax)",
            ("agent=fast_td3", "env=pendulum", "num_seeds=3", "eval_episodes=20", "eval_interval=16000"),
            threshold=-200,
            within_timesteps=96_000,
        ),
        LearningTask(
            "dqn_breakout",
            "DQN, Breakout-MinAtar (gymnax)",
            ("agent=dqn", "env=breakout", "num_seeds=3", "eval_episodes=20"),
            threshold=10,
            within_minutes=15,
            published=Published(
                "MinAtar", "https://github.com/kenjyoung/MinAtar/blob/master/examples/dqn.py", 5_000_000
            ),
        ),
        LearningTask(
            "ppo_hopper",
            "PPO, hopper (brax)",
            ("agent=ppo", "env=hopper"),
            threshold=1000,
            within_minutes=30,
            published=_rejax("brax/hopper", 5_242_880),
        ),
        LearningTask(
            "sac_hopper",
            "SAC, hopper (brax)",
            ("agent=sac", "env=hopper"),
            threshold=1000,
            within_minutes=30,
            published=_rejax("brax/hopper", 5_242_880),
        ),
        *EVOLUTION_TASKS,
    )
}
