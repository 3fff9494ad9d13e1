"""Save the replay buffer of a run: ``python scripts/save_replay.py run=<folder>``."""

from evorl.cli.main import save_replay

if __name__ == "__main__":
    save_replay()
