"""Show an episode that an evaluation saved: ``python scripts/replay.py episode=<file>``."""

from evorl.cli import replay

if __name__ == "__main__":
    replay()
