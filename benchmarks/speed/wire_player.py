"""A simulator that plays for a training server: ``python -m benchmarks.speed.wire_player HOST:PORT SEED``.

It plays episodes of Gymnasium's CartPole until its server or its parent has ended.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import gymnasium

from evorl.serving.client import AgentProxy, AgentProxyException


def end_with_parent() -> None:
    """Exit once standard input is closed, which happens whenever the parent process ends."""
    sys.stdin.read()
    os._exit(0)


def play(address: str, seed: int) -> None:
    """Play until the server is closed."""
    agent = AgentProxy(address, seed=seed, sleep=lambda seconds: time.sleep(seconds / 10))
    agent.connect(retry=1000)
    agent.init()
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=seed)
    action = agent.update(None, obs)
    while True:
        obs, reward, terminal, truncated, _ = env.step(action)
        if terminal or truncated:
            agent.update(float(reward), obs, True, truncated=bool(truncated and not terminal))
            obs, _ = env.reset()
            action = agent.update(None, obs)
        else:
            action = agent.update(float(reward), obs)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        play(sys.argv[1], int(sys.argv[2]))
    except AgentProxyException as ended:
        print(f"{sys.argv[1]}: {ended}", file=sys.stderr)
