"""Echo program for ``evorl check-client``, based on the client of this package.

evorl check-client command='python examples/remote/echo.py {address}'
"""

from __future__ import annotations

import sys

from evorl.serving.client import AgentProxy, AgentProxyException


def echo(agent: AgentProxy) -> None:
    """Send every action back as the next state, until the command ``end`` or the end of the connection."""
    agent.connect(retry=1)
    agent.init(exploit=False)
    reward, state = None, []
    while agent.is_connected:
        try:
            action = agent.update(reward, state)
            command = action if isinstance(action, str) else ""
            reward = 1.5
            if command == "end":
                agent.disconnect()
            elif command == "terminal":
                action = agent.update(reward, [action], terminal=True)
                reward = None
            elif command == "reset":
                action = agent.reset()
                reward = None
            elif command == "metric":
                agent.metrics.scalar("check", 1.5)
            state = [action]
        except AgentProxyException as error:
            state = ["error", str(error)]


if __name__ == "__main__":
    client = AgentProxy(sys.argv[1])
    try:
        echo(client)
    except AgentProxyException as error:
        print(error)
    finally:
        client.disconnect()
