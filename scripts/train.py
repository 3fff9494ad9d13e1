"""Train an algorithm in an environment: ``python scripts/train.py agent=sac env=hopper``."""

from evorl.cli.main import train

if __name__ == "__main__":
    train()
