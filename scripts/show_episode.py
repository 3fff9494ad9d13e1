"""Show an episode that an evaluation saved: ``python scripts/show_episode.py episode=<file>``."""

from evorl.cli.main import show_episode

if __name__ == "__main__":
    show_episode()
