"""A simulator for a training server: plays CartPole in a separate process until the server ends.

evorl serve agent=ppo env.obs_space='{shape: [4]}' env.action_space='{n: 2}'
python examples/remote/cartpole.py 127.0.0.1:7001        (any number of these; --exploit for greedy actions)
"""

from __future__ import annotations

import argparse

import gymnasium

from evorl.serving.client import AgentProxy, AgentProxyException


def play(address: str, exploit: bool = False, seed: int = 0, episodes: int | None = None) -> list[float]:
    """Play ``episodes`` episodes, or until the server ends; return their returns."""
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
                # A time limit does not end the task: report truncation and termination separately.
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
    parser.add_argument("--exploit", action="store_true", help="play greedy actions, which are not used for learning")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, help="number of episodes; default: until the server ends")
    arguments = parser.parse_args()
    play(arguments.address, arguments.exploit, arguments.seed, arguments.episodes)
