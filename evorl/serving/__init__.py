"""The wire: simulators, games and robots that ask over the network for actions."""
