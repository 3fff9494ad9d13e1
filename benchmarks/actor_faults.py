"""``python -m benchmarks.actor_faults``: kill actors at random while they collect, and report the effects.

Each kill is a signal (TERM, KILL or STOP) to one actor of a training run, at a random moment. The report states how
long detection took, whether the learner lost any transition, and which processes outlive the run.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP)
KINDS = ("process", "ray")
MODES = ("sync", "async")


def actor_processes(kind: str, with_stopped: bool = True) -> list[int]:
    """Return the actor processes of this run, which are its descendants."""
    marks = {"process": "spawn_main", "ray": "ray::_RayWorker"}
    found = []
    for pid in _descendants(os.getpid()):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        # Omit stopped processes, whose actors were replaced, and zombies: Ray takes a moment to reap its processes.
        if marks[kind] in line and (with_stopped or state not in "TZ"):
            found.append(pid)
    return found


def _descendants(root: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found, frontier = [], [root]
    while frontier:
        frontier = [pid for pid, parent in parents.items() if parent in frontier]
        found += frontier
    return found


def train_under_fire(kind: str, mode: str, num_kills: int, rng: np.random.Generator) -> dict[str, Any]:
    """Train while killing some of the actors; return counts, times and remaining processes."""
    from evorl.assembly import workflow_from_config
    from evorl.execution.collector import iterate

    config = {
        "workflow": "evorl.algorithms.dqn.DQNWorkflow",
        "env": {"library": "gymnasium", "name": "CartPole-v1"},
        "num_envs": 4,
        "rollout_length": 64,
        "replay_capacity": 1_000_000,
        "agent": {"network": {"torso": [16]}},
        "actors": {"kind": kind, "count": 2, "mode": mode, "max_lag": 4},
    }
    workflow = workflow_from_config(config)
    state = workflow.init(int(rng.integers(2**31)))
    messages: list[float] = []  # times of messages about actors

    def note(message: str) -> None:
        messages.append(time.monotonic())
        print(message, flush=True)

    _, state = iterate(workflow, state, 3, note)
    stored, seconds = int(state.replay_state.size), []
    before = set(_descendants(os.getpid()))
    for number in range(num_kills):
        actors = actor_processes(kind, with_stopped=False)
        victim, signal_number = int(rng.choice(actors)), SIGNALS[number % len(SIGNALS)]
        time.sleep(float(rng.uniform(0.0, 0.02)))
        os.kill(victim, signal_number)
        start, replaced = time.monotonic(), len(messages)
        by_ray = False  # Ray itself replaces an actor that dies during its creation
        while len(messages) == replaced and not by_ray and time.monotonic() - start < 60:
            _, state = iterate(workflow, state, 1, note)
            alive = actor_processes(kind, with_stopped=False)
            by_ray = kind == "ray" and victim not in alive and len(alive) == len(actors) and len(messages) == replaced
        if len(messages) - replaced != (not by_ray):
            raise SystemExit(f"after {signal_number.name}, {len(messages) - replaced} actors were replaced, not one")
        seconds.append((time.monotonic() if by_ray else messages[-1]) - start)
        _, state = iterate(workflow, state, 2, note)
        now = int(state.replay_state.size)
        if now < stored:
            raise SystemExit(f"{stored - now} stored transitions were lost")
        stored = now
        print(f"{kind} {mode} {signal_number.name}: found after {seconds[-1]:.1f} s", flush=True)
    workflow.close()
    time.sleep(1.0)  # Ray's processes end shortly after its response
    left = [pid for pid in (before | set(_descendants(os.getpid()))) if pid in actor_processes(kind)]
    return {"replaced": len(messages), "longest_seconds_to_find": max(seconds), "left": left}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.actor_faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="number of kills over all kinds and modes (default 100)")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    cases = [(kind, mode) for kind in arguments.kinds for mode in MODES]
    for kind, mode in cases:
        seen = train_under_fire(kind, mode, -(-arguments.kills // len(cases)), rng)
        print(f"{kind} {mode}: {seen}", flush=True)
        if seen["left"]:
            raise SystemExit(f"processes outlived the run: {seen['left']}")


if __name__ == "__main__":
    main()
