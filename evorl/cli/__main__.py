"""``python -m evorl.cli``: the same as ``scripts/train.py``."""

from evorl.cli.main import train

if __name__ == "__main__":
    train()
