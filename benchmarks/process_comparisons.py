"""Comparisons of whole processes: starting, importing, memory."""

from __future__ import annotations

from benchmarks.comparison import Bar, Comparison, Medians, Side

PROCESS = "benchmarks.drivers.process"
FIRST_STEP = "First step in"  # said by a training once its first step is done
GB = 1e9


def train_command(*overrides: str) -> list[str]:
    """Arguments of Python for a training from the command line."""
    return ["scripts/train.py", *overrides]


def cold_start(name: str, title: str, env: str, without_cache: float, with_cache: float) -> Comparison:
    """Seconds from the start of the process to the end of the first training step."""
    arguments = train_command("agent=ppo", f"env={env}", "eval_interval=0")
    settings = {"arguments": arguments, "until": FIRST_STEP}
    return Comparison(
        name,
        f"Process start to the first finished training step, {title}, as shipped",
        sides={
            "without cache": Side(PROCESS, settings),
            "with cache": Side(PROCESS, {**settings, "keep_cache": True}),
        },
        bars=[
            Bar("without cache, s", lambda found: found["without cache"]["seconds"], at_most=without_cache),
            Bar("with cache, s", lambda found: found["with cache"]["seconds"], at_most=with_cache),
        ],
        quantity="seconds",
    )


def import_time() -> Comparison:
    """What importing the package adds to importing JAX."""

    def added(found: Medians) -> float:
        return found["import evorl"]["seconds"] - found["import jax"]["seconds"]

    commands = ("import jax", "import evorl")
    return Comparison(
        "import_time",
        "A process that imports, and ends",
        sides={command: Side(PROCESS, {"arguments": ["-c", command]}) for command in commands},
        bars=[Bar("import evorl - import jax, s", added, at_most=0.5)],
        quantity="seconds",
    )


def peak_memory_ppo() -> Comparison:
    """A short run with everything that takes memory: compiling, an evaluation, a checkpoint, the picture."""
    arguments = train_command("agent=ppo", "env=hopper", "total_timesteps=65536", "eval_interval=32768")
    return Comparison(
        "peak_memory_ppo",
        "Peak memory of PPO on brax hopper as shipped: compiling, 65,536 steps, evaluation, checkpoint",
        sides={"evorl": Side(PROCESS, {"arguments": arguments})},
        bars=[Bar("peak, GB", lambda found: found["evorl"]["peak_bytes"] / GB, at_most=1.2)],
        quantity="peak_bytes",
    )


def peak_memory_sac(large: int = 2_000_000, small: int = 10_000) -> Comparison:
    """Two runs that differ in the replay buffer only: what the larger one adds, to what its state adds."""

    def side(capacity: int) -> Side:
        overrides = ["agent=sac", "env=hopper", f"replay_capacity={capacity}", "total_timesteps=12000"]
        overrides += ["eval_interval=0"]
        return Side(PROCESS, {"arguments": train_command(*overrides), "state_of": overrides})

    def per_state(found: Medians) -> float:
        added = found["large buffer"]["peak_bytes"] - found["bare"]["peak_bytes"]
        return (added + found["bare"]["state_bytes"]) / found["large buffer"]["state_bytes"]

    return Comparison(
        "peak_memory_sac",
        f"Peak memory of SAC on brax hopper, last checkpoint included; replay of {large:,} and of {small:,} (bare)",
        sides={"large buffer": side(large), "bare": side(small)},
        bars=[Bar("(peak - bare process) / state", per_state, at_most=1.3)],
        quantity="peak_bytes",
    )


PROCESS_COMPARISONS = (
    cold_start("cold_start_cartpole", "PPO CartPole", "cartpole", 10.0, 7.0),
    cold_start("cold_start_hopper", "PPO brax hopper", "hopper", 22.0, 9.0),
    import_time(),
    peak_memory_ppo(),
    peak_memory_sac(),
)
