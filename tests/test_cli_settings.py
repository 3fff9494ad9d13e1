"""Settings of a run: options of a stored run pass Hydra, and Weights & Biases takes a flag or a mapping."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from omegaconf import OmegaConf

from evorl.cli_settings import check_run_settings, options_of_any_run, wandb_settings


def _config(**changes: Any) -> Any:
    recorders = {"progress": True, "tensorboard": True, "wandb": changes.pop("wandb", False)}
    return OmegaConf.create(
        {"seed": 0, "checkpoints_kept": 3, "compilation_cache": True, "recorders": recorders, **changes}
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["resume=x", "tau=0.1", "env=a"], ["resume=x", "++tau=0.1", "env=a"]),
        (["run=x", "agent.temperature=2", "+env.b=1", "-m"], ["run=x", "++agent.temperature=2", "+env.b=1", "-m"]),
        (["run=x", "hydra.run.dir=y", "hydra/launcher=z"], ["run=x", "hydra.run.dir=y", "hydra/launcher=z"]),
        (["tau=0.1"], ["tau=0.1"]),
        (["run=x", "evolution=es"], ["run=x", "evolution=es"]),
        (["inner=sac", "inner.tau=1"], ["agent@inner=sac", "inner.tau=1"]),
        (["agent=erl/erl", "learner=sac"], ["agent=erl/erl", "agent@learner=sac"]),
        (["optimizer=evosax/CMA_ES,openes", "-m"], ["optimizer.name=evosax/CMA_ES,openes", "-m"]),
        (["learner.actor_optimizer=radam"], ["learner.actor_optimizer.name=radam"]),
        (["optimizer={name: ars}", "optimizer=null", "x=a"], ["optimizer={name: ars}", "optimizer=null", "x=a"]),
        (["resume=x", "optimizer=sgd"], ["resume=x", "++optimizer.name=sgd"]),
    ],
)
def test_options_of_a_stored_run_pass_hydra(
    given: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["evorl", *given])
    with options_of_any_run():
        assert sys.argv[1:] == expected
    assert sys.argv[1:] == given


def test_wandb_is_a_flag_or_a_mapping() -> None:
    assert wandb_settings(_config(wandb=False)) is None
    assert wandb_settings(_config(wandb=None)) is None
    on = wandb_settings(_config(wandb=True))
    assert on is not None
    assert list(on) == ["config"]
    assert on["config"]["seed"] == 0
    named = wandb_settings(_config(wandb={"project": "p", "mode": "online"}))
    assert named is not None
    assert (named["project"], named["mode"]) == ("p", "online")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": 2**32}, "seed must be a whole number"),
        ({"checkpoints_kept": 0}, "checkpoints_kept must be a positive whole number"),
        ({"compilation_cache": 3}, "compilation_cache must be true, false or a folder, got 3"),
        ({"wandb": "online"}, "recorders.wandb must be true, false or a mapping"),
        ({"wandb": {"mod": "online"}}, "Unknown key of recorders.wandb 'mod': did you mean 'mode'"),
    ],
)
def test_nonsense_is_refused(changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_run_settings(_config(**changes))


def test_whole_floats_pass() -> None:
    config = _config(checkpoints_kept=2.0)
    check_run_settings(config)
    assert config.checkpoints_kept == 2
