"""A simulator for a training server: CartPole plays until the server ends, in a process of its own.

evorl serve agent=ppo env.obs_space='{shape: [4]}' env.action_space='{n: 2}'
python examples/remote/cartpole.py 127.0.0.1:7001        (any number of these; with --exploit one that only shows)
"""

from __future__ import annotations

import argparse

import gymnasium

from evorl.serving.client import AgentProxy, AgentProxyException


def play(address: str, exploit: bool = False, seed: int = 0, episodes: int | None = None) -> list[float]:
    """Play episodes until the server goes, or so many; their returns."""
    env = gymnasium.make("CartPole-v1")
    agent = AgentProxy(address, seed=seed)
    returns: list[float] = []
    try:
        agent.connect()
        agent.init(exploit=exploit)
        while episodes is None or len(returns) < episodes:
            state, _ = env.reset(seed=seed if not returns else None)
            action = agent.update(None, state)
            returns.append(0.0)
            over = False
            while not over:
                state, reward, terminated, truncated, _ = env.step(action)
                returns[-1] += float(reward)
                over = terminated or truncated
                # Time that is up is not the end of the task: the server is told which of them it was.
                action = agent.update(reward, state, terminal=over, truncated=truncated and not terminated)
    except AgentProxyException as error:
        print(f"{len(returns)} episodes. {error}")
    finally:
        agent.disconnect()
        env.close()
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", default="127.0.0.1:7001")
    parser.add_argument("--exploit", action="store_true", help="play by the best action known, and be not learned from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, help="so many; until the server ends, if it is left out")
    arguments = parser.parse_args()
    play(arguments.address, arguments.exploit, arguments.seed, arguments.episodes)
