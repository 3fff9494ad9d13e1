"""Network serving: simulators, games and robots request actions from an agent."""
