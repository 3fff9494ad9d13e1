"""Tasks of ``benchmarks/defaults/tasks.yaml``: training runs without tuned settings."""

from __future__ import annotations

from pathlib import Path

from benchmarks.learning.task import read_tasks

TASKS = read_tasks(Path(__file__).with_name("tasks.yaml"))
AGENTS = ("ppo", "dqn", "pqn", "sac", "td3", "crossq")
# Settings that a user chooses even without tuned settings; all others are under test.
CHOSEN = ("agent", "env", "total_timesteps", "eval_interval")
