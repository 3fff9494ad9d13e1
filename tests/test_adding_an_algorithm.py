"""Adding an algorithm edits no file: a toy in a copy of the tree trains, passes its tests and has a page."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import architecture
from tests.support.doc_pages import ROOT
from tests.support.source_tree import read_tree, tracked_paths

CODE = '''"""A toy: the policy follows the advantages of its own trajectory, and nothing else."""

from __future__ import annotations

from typing import Any

import jax

from evorl.agent import AgentState
from evorl.agents.actor_critic import ActorCriticAgent, ActorCriticBatch
from evorl.ops.losses import policy_gradient, squared_error
from evorl.ops.optimization import gradient_step
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict
from evorl.workflows.on_policy import OnPolicyWorkflow


class ToyAgent(ActorCriticAgent):
    """A policy and a value function."""

    def loss(self, params: Params, agent_state: AgentState, batch: ActorCriticBatch) -> tuple[jax.Array, PyTreeDict]:
        """Of a batch ``[T, B]``."""
        policy, values, *_ = self.estimates_of_batch(agent_state, params, batch)
        loss = policy_gradient(policy.log_prob(batch.raw_actions), batch.advantages).mean()
        return loss + squared_error(values, batch.targets).mean(), PyTreeDict(policy_loss=loss)


class ToyWorkflow(OnPolicyWorkflow):
    """One gradient step on each trajectory."""

    agent: ToyAgent

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        batch = self.agent.batch_with_advantages(agent_state, trajectory, self.discount, 1.0)
        params, opt_state, metrics = gradient_step(
            self.agent.loss, self.optimizer, agent_state.params, opt_state, agent_state, batch
        )
        return agent_state.replace(params=params), opt_state, metrics
'''
CONFIG = """# @package _global_
# A toy; discrete and continuous actions.
workflow: evorl.algorithms.toy.ToyWorkflow # the class that trains

total_timesteps: 4096 # environment steps of the training, for each seed
num_envs: 4 # environments stepped together
"""
TEST = '''"""The toy keeps what all algorithms promise."""

from __future__ import annotations

from evorl.algorithms.toy import ToyWorkflow
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.small_workflows import ONE_STEP_CONFIG


class TestContract(WorkflowContract):
    workflow = ToyWorkflow
    SMALL = ONE_STEP_CONFIG


class TestAgent(AgentContract):
    workflow = ToyWorkflow
    settings = TestContract.SMALL["agent"]
'''
PAGE = """# Toy

A toy.

```bash
python scripts/train.py agent=toy env=cartpole
```

## Settings

<!-- settings: configs/agent/toy.yaml -->

<!-- end of settings -->

## Reference

::: evorl.algorithms.toy
"""
ADDED = {
    "evorl/algorithms/toy.py": CODE,
    "configs/agent/toy.yaml": CONFIG,
    "tests/algorithms/test_toy.py": TEST,
    "docs/algorithms/toy.md": PAGE,
}


def _digests(root: Path) -> dict[str, str]:
    paths = [p for p in root.rglob("*") if p.is_file() and not {"__pycache__", ".pytest_cache", "site"} & set(p.parts)]
    return {p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the repository and add the toy's four files."""
    root = tmp_path_factory.mktemp("copy")
    for path in tracked_paths(ROOT):
        target = root / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for path, text in ADDED.items():
        assert not (root / path).exists()
        (root / path).write_text(text, encoding="utf-8")
    before = _digests(root)
    _run(root, "-c", _FILL_TABLE)
    assert {path for path, digest in _digests(root).items() if before.get(path) != digest} == {"docs/algorithms/toy.md"}
    return root


# Runs `python -m tests.support.doc_pages` for the new page only.
_FILL_TABLE = """
from pathlib import Path
from tests import architecture
from tests.support.doc_pages import with_tables
page = Path("docs/algorithms/toy.md")
page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
"""


def _run(root: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_it_keeps_the_contracts(tree: Path) -> None:
    printed = _run(tree, "-m", "pytest", "-q", "-n", "0", "tests/algorithms/test_toy.py")
    assert "passed" in printed
    assert "failed" not in printed


def test_it_keeps_the_rules_and_is_in_configs_and_pages(tree: Path) -> None:
    files = read_tree(tree)
    assert [breach for rule in architecture.RULES for breach in rule(files) if "toy" in breach] == []
    files = ("tests/test_configs.py", "tests/test_docs.py")
    printed = _run(tree, "-m", "pytest", "-q", "-n", "0", *files, "-k", "toy or told")
    assert "passed" in printed


def test_it_trains_by_its_name(tree: Path, tmp_path: Path) -> None:
    options = ["agent=toy", "env=cartpole", "total_timesteps=512", "log_interval=256", "eval_episodes=4"]
    printed = _run(tree, "scripts/train.py", *options, f"runs_folder={tmp_path}")
    assert "Results are in" in printed
    (table,) = tmp_path.rglob("metrics.csv")
    header, *rows = table.read_text().splitlines()
    assert "train/policy_loss" in header
    assert rows[-1].split(",")[1] == "512"


def test_its_page_is_built(tree: Path, tmp_path: Path) -> None:
    """The page is in the navigation and in all lists of algorithms."""
    sys.path.insert(0, str(tree / "docs"))
    try:
        spec = importlib.util.spec_from_file_location("algorithm_pages", tree / "docs/algorithm_pages.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    assert module.titles(tree / "docs")["algorithms/toy.md"] == "Toy"
    config = {"docs_dir": str(tree / "docs"), "nav": [{"Overview": "index.md"}, {"Algorithms": "algorithms/"}]}
    assert {"Toy": "algorithms/toy.md"} in module.on_config(config)["nav"][1]["Algorithms"]
    if importlib.util.find_spec("material") is None:
        return  # documentation tools are an extra
    _run(tree, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path))
    for page in ("index.html", "reference/workflows.html"):
        assert "algorithms/toy.html" in (tmp_path / page).read_text("utf-8")


def test_no_file_was_edited(tree: Path) -> None:
    digests = _digests(tree)
    assert digests.keys() >= ADDED.keys()
    for path in tracked_paths(ROOT):
        name = path.relative_to(ROOT).as_posix()
        assert digests[name] == hashlib.sha256(path.read_bytes()).hexdigest(), name
