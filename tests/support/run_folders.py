"""Manually written run folders, for tests of their readers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evorl.runs.about import add_start
from evorl.runs.folder import RunFolder

STEPS = 1000
PNG = bytes.fromhex(  # one pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a4944415478da63f80f0001010100"
    "1bb6ee560000000049454e44ae426082"
)
START = {
    "agent": "ppo", "env": "cartpole", "command": "evorl train agent=ppo runs_folder=/disk/anna/runs",
    "device": "2 x cpu", "processor": "A processor", "system": "Linux x86_64", "commit": "0123abc",
    "versions": {"python": "3.11.7", "evorl": "0.1.0", "jax": "0.10.2", "flax": "0.12.8"},
}  # fmt: skip


def make_run(
    root: Path,
    name: str,
    returns: Sequence[Sequence[float]],
    settings: Mapping[str, Any] | None = None,
    algorithm: str = "ppo.PPO",
    env: str = "CartPole-v1",
    start: Mapping[str, Any] | None = None,
    log: str = "Results are in /somewhere (12 s in total)",
) -> RunFolder:
    """Create a run with an evaluation every 1000 steps.

    Args:
        root: folder of all runs.
        name: path of the run folder below ``root``.
        returns: per evaluation and seed.
        settings: additional settings of the config.
        algorithm: end of the workflow's name.
        env: name in gymnax.
        start: record of the start.
        log: last line of the log.
    """
    workflow = f"evorl.algorithms.{algorithm}Workflow"
    total = STEPS * len(returns)
    config = {"seed": 0, "workflow": workflow, "total_timesteps": total, "env": {"library": "gymnax", "name": env}}
    folder = RunFolder.create(root, {**config, **(settings or {})}, name)
    seeds = [f"eval/episode_return_seed_{i}" for i in range(len(returns[0]))] if len(returns[0]) > 1 else []
    columns = ["iterations", "timesteps", "train/value_loss", "train/entropy", "eval/episode_return", *seeds]
    rows = [
        [i + 1, STEPS * (i + 1), 10.0 / (i + 1), 0.5, sum(values) / len(values), *(values if seeds else ())]
        for i, values in enumerate(returns)
    ]
    lines = [",".join(columns), *(",".join(map(repr, row)) for row in rows)]
    folder.metrics_csv.write_text("\n".join(lines) + "\n")
    timed = [{"timesteps": row[1], "time/steps_per_second": 100.0 * row[0], "time/clock": 1e9 + row[0]} for row in rows]
    folder.metrics_jsonl.write_text("".join(json.dumps(row) + "\n" for row in timed))
    folder.log.write_text(f"PPOWorkflow: {total:,} environment steps.\n{log}\n")
    if start is not None:
        add_start(folder.about, start)
    return folder


def make_sweep(root: Path) -> None:
    """Create runs of two algorithms in two environments, PPO with two learning rates; every third has three seeds."""
    for e, env in enumerate(("CartPole-v1", "Acrobot-v1")):
        for r, rate in enumerate((0.001, 0.01)):
            for s in range(3):
                returns = [[10.0 * i + 3 * r + s + k for k in range(3 if s == 2 else 1)] for i in range(1, 6)]
                optimizer = {"optimizer": {"learning_rate": rate}, "seed": s}
                make_run(root, f"ppo-{e}/{r}{s}", returns, optimizer, env=env, start=START)
        for s in range(2):
            returns = [[8.0 * i + s] for i in range(1, 6)]
            make_run(root, f"a2c-{e}/{s}", returns, {"seed": s}, "a2c.A2C", env, START | {"agent": "a2c"})


def with_checkpoint(folder: RunFolder, step: int = 5) -> RunFolder:
    """Add a checkpoint that consists of a manifest."""
    manifest = folder.checkpoints / str(step) / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    return folder
