"""Evaluate the best checkpoint of a run: ``python scripts/evaluate.py run=<folder>``."""

from evorl.cli.main import evaluate

if __name__ == "__main__":
    evaluate()
