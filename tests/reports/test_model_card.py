"""Model cards of packed policies."""

from __future__ import annotations

from pathlib import Path

import yaml

from evorl.reports.model_card import PackedCheckpoint, model_card
from evorl.reports.recorded_run import named
from tests.support.run_folders import START, STEPS, make_run

CHECKPOINT = PackedCheckpoint(3 * STEPS, 31.0, 3, {}, "apache-2.0", "policy.html, not checked")


def card_of(root: Path, checkpoint: PackedCheckpoint = CHECKPOINT, **options: object) -> tuple[dict, dict[str, str]]:
    """Return the metadata and the rows of the tables of a card."""
    returns = [[10.0 * i + k for k in range(3)] for i in range(1, 6)]
    (run,) = named([make_run(root, "ppo-cartpole/a", returns, {"num_seeds": 3}, start=START, **options)])
    text = model_card(run, checkpoint)
    _, head, body = text.split("---\n", 2)
    rows = [line for line in body.splitlines() if line.startswith("| ") and "---" not in line]
    lines = [row.strip("| ").split(" | ", 1) for row in rows]
    return yaml.safe_load(head), {line[0]: line[-1] for line in lines}


def test_a_card_has_the_metadata_of_the_hub(tmp_path: Path) -> None:
    metadata, _ = card_of(tmp_path)
    assert metadata["license"] == "apache-2.0"
    assert metadata["library_name"] == "evorl"
    assert {"reinforcement-learning", "ppo", "gymnax/CartPole-v1"} <= set(metadata["tags"])
    ((result,),) = (entry["results"] for entry in metadata["model-index"])
    assert result["metrics"][0] == {"type": "mean_reward", "name": "mean_reward", "value": 31.0}


def test_a_card_tells_how_the_policy_was_trained(tmp_path: Path) -> None:
    _, facts = card_of(tmp_path)
    assert facts["agent"] == "ppo"
    assert facts["environment"] == "gymnax/CartPole-v1"
    assert facts["seeds"].startswith("3 (")
    assert facts["steps"].startswith("3,000 ")
    assert "31.0" in facts["score"]
    assert "from 30.0 to 32.0 over the seeds" in facts["score"]
    assert "95 % interval" in facts["training"]
    assert "evorl 0.1.0" in facts["versions"]
    assert "jax 0.10.2" in facts["versions"]
    assert facts["commit"] == "0123abc"
    assert facts["license"] == "apache-2.0"
    assert "/disk/anna" not in str(facts)
    assert facts["num_seeds"] == "3"


def test_a_score_over_several_evaluations(tmp_path: Path) -> None:
    (run,) = named([make_run(tmp_path, "a", [[1.0]], {"best_over": 5})])
    assert "mean return of up to 5 evaluations" in model_card(run, CHECKPOINT._replace(seeds=1))


def test_unknown_facts_are_not_invented(tmp_path: Path) -> None:
    checkpoint = CHECKPOINT._replace(score=None, license=None)
    metadata, facts = card_of(tmp_path, checkpoint)
    assert "license" not in metadata
    assert "model-index" not in metadata
    assert facts["score"] == "not evaluated"
    assert facts["license"] == "not stated"


def test_code_that_the_policy_needs_is_named(tmp_path: Path) -> None:
    _, facts = card_of(tmp_path, CHECKPOINT._replace(foreign={"env.factory": "mine:make"}))
    assert "env.factory=mine:make" in facts["needs code"]
    assert "trust=true" in facts["needs code"]


def test_names_are_no_markup(tmp_path: Path) -> None:
    _, facts = card_of(tmp_path, env="<script>alert(1)</script>|x`y\n[a](b)")
    assert facts["environment"].startswith("gymnax/&lt;script>")
    assert "\\|x\\`y\\\\n\\[a](b)" in facts["environment"]
