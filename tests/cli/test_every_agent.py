"""Every agent of the config tree, which pages name, is trained from the command line for a few steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from evorl.assembly import complete_config, workflow_class
from evorl.cli import main as cli
from evorl.config.synonyms import names_for_synonym
from evorl.envs.action_spaces import ActionSpaces
from tests.support.command_line import QUIET
from tests.support.config_files import CONFIGS, acts_in, composed, said_by
from tests.support.doc_pages import pages

AGENTS = sorted(
    str(path.relative_to(CONFIGS / "agent").with_suffix("")) for path in (CONFIGS / "agent").rglob("*.yaml")
)
# Passed to an agent, and to its inner agent, where it has such a setting.
SMALL = {
    "total_timesteps": 64,
    "num_envs": 4,
    "rollout_length": 4,
    "num_epochs": 1,
    "num_minibatches": 1,
    "batch_size": 4,
    "learning_starts": 8,
    "replay_capacity": 512,
    "updates_per_iteration": 1,
    "sequence_length": 4,
    "sequence_period": 2,
    "burn_in": 2,
    "n_step": 1,
    "policy_delay": 1,
    "generation_interval": 16,
    "updates_per_generation": 1,
    "optimizer.pop_size": 16,
    "pop_size": 8,
    "frequencies": "[1,2]",
    "emitter.num_emitters": 1,
    "agent.network.torso": "[4]",
    "agent.policy_network.torso": "[4]",
    "agent.critic_network.torso": "[4]",
}
QUICK = ["env.max_episode_steps=8", "eval_interval=0", *QUIET]


def small(agent: str, env: str) -> list[str]:
    online = complete_config(workflow_class(said_by(f"agent/{agent}")["workflow"]), {}).get("offline")
    choice = [f"agent={agent}", f"env={env}", *(["offline=false"] if online else [])]
    config = composed(*choice)
    paths = (f"{part}{name}" for part in ("", "inner.", "learner.") for name in SMALL)
    known = [path for path in paths if OmegaConf.select(config, path) is not None and path != "learner.num_envs"]
    return [*choice, *(f"{path}={SMALL[re.sub('^(inner|learner)[.]', '', path)]}" for path in known)]


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_trains_from_the_command_line(agent: str, run, tmp_path: Path) -> None:
    env = "acrobot" if acts_in(agent) is ActionSpaces.DISCRETE else "pendulum"
    out, err = run(cli.train, *small(agent, env), *QUICK, f"runs_folder={tmp_path}")
    assert err == ""
    assert "Results are in" in out
    (metrics,) = tmp_path.glob("*/*/metrics.csv")
    assert metrics.read_text().count("\n") >= 2


def test_every_agent_that_a_page_names_exists() -> None:
    # Commands with --config-dir use the reader's agent, "agent=folder/..." uses any agent of the folder.
    lines = [line for page in pages() for line in page.read_text(encoding="utf-8").splitlines()]
    text = "\n".join(line for line in lines if "--config-dir" not in line)
    named = {name for names in re.findall(r"\bagent=([a-z][\w/,]*)", text) for name in names.split(",") if name}
    folders = {f"{agent.rpartition('/')[0]}/" for agent in AGENTS if "/" in agent}
    unknown = named - set(AGENTS) - folders - {"null"}  # the default of an option
    assert {name for name in unknown if not names_for_synonym(name, AGENTS)} == set()
