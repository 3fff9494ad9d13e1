"""Entry point of ``python -m evorl.cli``, equivalent to ``scripts/train.py``."""

from evorl.cli.main import train

if __name__ == "__main__":
    train()
